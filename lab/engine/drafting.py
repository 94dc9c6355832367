"""A step's drafting: which drafter reads or proposes for which sequences, how much, and what happens if it fails."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from lab.engine.drafters import Drafter, ModelDrafter, PromptLookup, Proposals, Synthetic
from lab.engine.error_messages import explain
from lab.engine.scheduler import Turn
from lab.engine.sequence import Sequence
from lab.kv_cache.kv_cache import Cache
from lab.models.language_model import LanguageModel
from lab.trace.events import FellBack
from lab.trace.roofline import PassCost
from lab.util.step_timer import StepTimer

log = logging.getLogger(__name__)


class Drafted(NamedTuple):
    """What a step's drafters did.

    Attributes:
        proposals: by sequence; sequences without any are absent.
        work: what was moved and computed.
        windows: for each drafter that was asked, the most tokens it proposed for one sequence; 0 if it failed, or read
            more than in a usual round and so took longer.
    """

    proposals: dict[Sequence, Proposals]
    work: PassCost
    windows: dict[Drafter, int]


class Drafters:
    """The drafters of one pool. Sequences that ask for the same drafter share it, and so its forward passes."""

    def __init__(self, target: LanguageModel, draft: LanguageModel | None, cache: Cache | None) -> None:
        self._target = target
        self._draft = draft
        self._cache = cache
        self._shared: dict[tuple[object, ...], Drafter] = {}

    def join(self, sequence: Sequence) -> None:
        """Give a sequence the drafter that it asks for, unless it has given one up."""
        sequence.drafter = None if "drafter" in sequence.gave_up else self._of(sequence)

    def window(self, sequence: Sequence) -> int:
        """How many tokens to propose: gamma, but none during the prompt, and never past the sequence's end or the
        draft's context. A round of g proposals yields up to g + 1 tokens.
        """
        if sequence.drafter is None or not sequence.generated:
            return 0
        return max(0, min(sequence.window.gamma, self._room(sequence, len(sequence.tokens))))

    def propose(self, turns: list[Turn], clock: StepTimer) -> Drafted:
        """Let every drafter read and propose for all of its sequences. The sequences for which one fails go on
        without it; it is still asked for others.

        ``clock`` gets one part "draft" for reading, and one per drafter for its proposals.
        """
        reading: dict[Drafter, list[Turn]] = defaultdict(list)
        proposing: dict[Drafter, list[Turn]] = defaultdict(list)
        for turn in turns:
            if turn.window:
                proposing[turn.sequence.drafter].append(turn)
            elif turn.count > 1 and self._will_propose(turn.sequence):
                reading[turn.sequence.drafter].append(turn)
        proposals: dict[Sequence, Proposals] = {}
        drafting, proposed = PassCost(), {}
        for drafter, theirs in reading.items():
            sequences = [turn.sequence for turn in theirs]
            with _given_up_by(sequences):
                drafting += drafter.read(sequences, [turn.sequence.computed + turn.count for turn in theirs])
        clock.mark("draft")
        for drafter, theirs in proposing.items():
            sequences, windows = [turn.sequence for turn in theirs], [turn.window for turn in theirs]
            proposed[drafter] = 0
            with _given_up_by(sequences):
                work, behind = drafter.work(sequences, windows), drafter.is_behind(sequences)
                made = drafter.propose(sequences, windows)
                proposals |= {s: some for s, some in zip(sequences, made, strict=True) if some}
                drafting += work
                if not behind:
                    proposed[drafter] = max((len(some.tokens) for some in made if some), default=0)
            clock.mark(drafter)
        return Drafted(proposals, drafting, proposed)

    def _will_propose(self, sequence: Sequence) -> bool:
        """Whether there will be room for proposals once the next token is known."""
        return sequence.drafter is not None and self._room(sequence, len(sequence.tokens) + 1) > 0

    def _room(self, sequence: Sequence, known: int) -> int:
        """How many tokens can be proposed after ``known`` tokens."""
        room = sequence.end - known - 1
        if sequence.config.speculative == "draft":
            room = min(room, self._draft.context_length - known)
        return room

    def _of(self, sequence: Sequence) -> Drafter | None:
        config, target = sequence.config, self._target
        match config.speculative:
            case "draft":
                return self._share(("draft",), lambda: ModelDrafter(self._draft, self._cache and self._cache.draft))
            case "early_exit":
                layers, storage = target.early_layers(config.early_exit_layer), self._cache and self._cache.target
                return self._share(
                    ("early_exit", layers), lambda: ModelDrafter(target.first(layers), storage, early_exit=True)
                )
            case "ngram":
                low, high = config.prompt_lookup_min, config.prompt_lookup_max
                return self._share(
                    ("ngram", low, high), lambda: PromptLookup(low, high, target.vocabulary, target.device)
                )
            case "synthetic":  # not shared: it knows only one request's tokens
                own = sequence.oracle.tokens[sequence.prompt_length :]
                return Synthetic(config.synthetic_acceptance_rate, own, target.vocabulary, target.device)
        return None

    def _share(self, key: tuple[object, ...], make: Callable[[], Drafter]) -> Drafter:
        if key not in self._shared:
            self._shared[key] = make()
        return self._shared[key]


def give_up(sequence: Sequence, reason: str) -> None:
    """Let the sequence go on without a drafter. ``reason`` is a sentence."""
    sequence.drafter = None
    sequence.draft_length = 0  # what it stored may be wrong, too: nobody is to find it
    sequence.gave_up.add("drafter")
    sequence.recorder.emit(FellBack, part="drafter", reason=reason)


@contextmanager
def _given_up_by(sequences: list[Sequence]) -> Iterator[None]:
    """If the drafter of ``sequences`` fails in this block, let them go on without it."""
    try:
        yield
    except Exception as error:
        log.warning("a drafter failed", exc_info=True)
        for sequence in sequences:
            give_up(sequence, explain(error))
