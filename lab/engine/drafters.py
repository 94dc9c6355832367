"""Drafters, which propose tokens for the target to verify: four kinds here, those with a head in ``head_drafter``.

Lessons 8, speculative decoding, and 11, drafting without a draft model.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch.nn import functional as F

from lab.backends.interface import PROPOSE, TOP_TOKENS_ON_GPU, Backend, DraftRound, DraftTokens, NewTokens
from lab.engine.drafter import Drafter
from lab.engine.failures import disabling_drafter
from lab.engine.head_drafter import HEAD_DRAFTERS, HeadDrafter
from lab.engine.pass_cost import ExpertsRead, PassCostModel, Span
from lab.engine.scheduler import ScheduledSequence
from lab.engine.sequence import Sequence
from lab.kv_cache.kv_cache import KVCache
from lab.kv_cache.storage import KVStorage
from lab.models.language_model import Taps
from lab.trace.roofline import PassCost
from lab.util.device_copy import several_on_device
from lab.util.step_timer import StepTimer


class ModelDrafter(Drafter):
    """A model that decodes ahead on its own, all sequences in one forward pass.

    Either a smaller model with the target's tokenizer, whose keys and values have the same slot numbers as the target's
    in a storage of their own; or the target's own first layers (``early_exit``: Elhoushi et al., 2404.16710, but
    without their training, and without reusing these layers' work when verifying), which read what the target stored
    and write what it will overwrite.
    """

    def __init__(self, backend: Backend, storage: KVStorage | None, *, early_exit: bool = False) -> None:
        super().__init__()
        self._backend = backend
        self._storage = storage
        self._early_exit = early_exit
        self._costs = PassCostModel(backend, storage)

    def propose(self, sequences: list[Sequence], windows: list[int]) -> list[DraftTokens | None]:
        """The first forward pass also reads the tokens the model has not seen yet, or without a cache all of them.

        The last draft token is not fed back: if it is accepted, the next round begins by reading it.
        """
        starts = [self._num_read(sequence) for sequence in sequences]
        unread = [s.tokens[start:] for s, start in zip(sequences, starts, strict=True)]
        batch = [
            NewTokens(new, start, sequence.table, keep=1)
            for new, start, sequence in zip(self._on_device(unread), starts, sequences, strict=True)
        ]
        uniforms = [s.draws(w)[:, PROPOSE] for s, w in zip(sequences, windows, strict=True)]
        drafts = self._backend.draft(batch, windows, [s.draft_sampling for s in sequences], uniforms, self._storage)
        if not self._early_exit:
            for sequence, new, window in zip(sequences, batch, windows, strict=True):
                sequence.draft.num_computed = new.stop + window - 1 if sequence.table else 0
        return drafts

    def read(self, sequences: list[Sequence], stops: list[int]) -> PassCost:
        if self._early_exit or self._storage is None:
            return PassCost()
        starts = [sequence.draft.num_computed for sequence in sequences]
        news = [s.tokens[start:stop] for s, start, stop in zip(sequences, starts, stops, strict=True)]
        batch = [
            NewTokens(new, start, sequence.table, keep=0)
            for new, start, sequence in zip(self._on_device(news), starts, sequences, strict=True)
            if len(new)
        ]
        if batch:
            self._backend.forward(batch, self._storage)
        for sequence, stop in zip(sequences, stops, strict=True):
            sequence.draft.num_computed = max(sequence.draft.num_computed, stop)
        return self._costs.of(Span(new.start, new.stop, 0) for new in batch) if batch else PassCost()

    def cost(self, sequences: list[Sequence], windows: list[int]) -> PassCost:
        return self._costs.decoding([Span(self._num_read(s), len(s.tokens), keep=1) for s in sequences], windows)

    def experts_read(self) -> list[ExpertsRead]:
        return self._costs.experts_read()

    def is_behind(self, sequences: list[Sequence]) -> bool:
        # After a fully accepted round it reads two tokens: its own last draft token and the bonus token.
        return any(sequence.table and len(sequence.tokens) - self._num_read(sequence) > 2 for sequence in sequences)

    def _num_read(self, sequence: Sequence) -> int:
        """Tokens that already have this model's keys and values."""
        return sequence.computed if self._early_exit else sequence.draft.num_computed

    def _on_device(self, tokens: list[list[int]]) -> list[torch.Tensor]:
        return several_on_device(tokens, self._backend.model.device)


class PromptLookup(Drafter):
    """Drafts what followed the text's last few tokens where they occurred earlier: no model, no cost.

    Saxena, "Prompt Lookup Decoding" (2023), who takes the first occurrence followed by enough tokens (here it is the
    last); Yang et al., 2304.04487. q is 1 on each draft token, so rejection sampling accepts it with probability p.
    """

    def __init__(self, shortest: int, longest: int, vocabulary: int, device: torch.device) -> None:
        super().__init__()
        self._shortest, self._longest, self._vocabulary, self._device = shortest, longest, vocabulary, device
        self._texts: WeakKeyDictionary[Sequence, array[int]] = WeakKeyDictionary()

    def propose(self, sequences: list[Sequence], windows: list[int]) -> list[DraftTokens | None]:
        found = [
            lookup(self._text(sequence), window, self._shortest, self._longest)
            for sequence, window in zip(sequences, windows, strict=True)
        ]
        return [
            DraftTokens(tokens, F.one_hot(tokens, self._vocabulary).float()) if len(tokens) else None
            for tokens in several_on_device(found, self._device)
        ]

    def _text(self, sequence: Sequence) -> np.ndarray:
        """The sequence's tokens, [length] C integers. A text only grows, since rejected draft tokens were never in it;
        so only new tokens are copied."""
        text = self._texts.setdefault(sequence, array("i"))
        text.extend(sequence.tokens[len(text) :])
        return np.frombuffer(text, np.intc)


def lookup(text: np.ndarray, count: int, shortest: int, longest: int) -> list[int]:
    """Up to ``count`` tokens that followed an earlier occurrence of the longest suffix of ``text`` that has one.

    Of several occurrences, it is the last one that ``count`` tokens follow, or else the first. (In a text that repeats
    itself, few tokens follow the very last.) ``text``: [length] of integers, length > 0. ``shortest``, ``longest``:
    length of the suffix in tokens.
    """
    length, ends = 1, np.flatnonzero(text[:-1] == text[-1]) + 1  # just after each occurrence of the last token
    while length < longest and len(ends):
        longer = ends[ends > length]
        longer = longer[text[longer - length - 1] == text[-length - 1]]
        if not len(longer):
            break
        length, ends = length + 1, longer
    if length < shortest or not len(ends):
        return []
    whole = ends[ends + count <= len(text)]
    begin = whole[-1] if len(whole) else ends[0]
    return text[begin : begin + count].tolist()


class Synthetic(Drafter):
    """A simulated drafter: it knows the target's next tokens, and proposes each of them with probability ``rate``.

    ``target_tokens`` are those of the same request, decoded plainly beforehand. Any other draft token is rejected and
    replaced by the target's, so the text is the plain one whatever the rate.
    """

    def __init__(self, rate: float, target_tokens: list[int], vocabulary: int, device: torch.device) -> None:
        super().__init__()
        self._rate, self._target_tokens, self._vocabulary, self._device = rate, target_tokens, vocabulary, device

    def propose(self, sequences: list[Sequence], windows: list[int]) -> list[DraftTokens | None]:
        drafts = []
        for sequence, window in zip(sequences, windows, strict=True):
            first = sequence.generated
            known = self._target_tokens[first : first + window]
            right = (sequence.draws(len(known))[:, PROPOSE] < self._rate).tolist()
            wrong = [(token + 1) % self._vocabulary for token in known]
            drafts.append([k if is_right else w for k, w, is_right in zip(known, wrong, right, strict=True)])
        return [DraftTokens(ids, None) if len(ids) else None for ids in several_on_device(drafts, self._device)]


class DraftOutput(NamedTuple):
    """The result of a step's drafting.

    Attributes:
        rounds: one for each scheduled sequence, with its draft tokens if it has any.
        cost: what was moved and computed, but for ``experts``.
        longest: for each drafter that was asked, the most tokens it drafted for one sequence; 0 if it failed, or read
            more than in a usual round and so took longer.
    """

    rounds: list[DraftRound]
    cost: PassCost
    longest: dict[Drafter, int]
    experts: list[ExpertsRead]


class Drafters:
    """The drafters of one core. Sequences that ask for the same drafter share it, and so its forward passes."""

    def __init__(self, target: Backend, draft: Backend | None, cache: KVCache | None) -> None:
        self._target, self._draft, self._cache = target, draft, cache
        self._dtype = target.model.dtype
        self._shared: dict[tuple[object, ...], Drafter] = {}
        self._assigned: WeakKeyDictionary[Sequence, Drafter] = WeakKeyDictionary()

    def assign(self, sequence: Sequence) -> None:
        if drafter := self._wanted(sequence):
            self._assigned[sequence] = drafter

    def of(self, sequence: Sequence) -> Drafter | None:
        """The drafter of a sequence; None if it asked for none, or goes on without it."""
        return None if "drafter" in sequence.report.disabled else self._assigned.get(sequence)

    def window(self, sequence: Sequence, running: int) -> int:
        """The number of tokens to draft while so many run: gamma, but none during the prompt, and never past the
        sequence's end or the draft's context. A round of g draft tokens yields up to g + 1 tokens."""
        if not sequence.generated or self.of(sequence) is None:
            return 0
        return max(0, min(sequence.draft.window.for_batch(running), self._room(sequence, len(sequence.tokens))))

    def propose(self, scheduled: list[ScheduledSequence], timer: StepTimer) -> DraftOutput:
        """Let every drafter propose for all of its sequences. The sequences for which one fails go on without it; it
        is still asked for others.

        ``timer`` gets one part per drafter.
        """
        proposing: dict[Drafter, list[ScheduledSequence]] = defaultdict(list)
        for one in scheduled:
            if one.num_draft_tokens:
                proposing[self.of(one.sequence)].append(one)
        drafts: dict[Sequence, DraftTokens] = {}
        cost, longest, experts = PassCost(), {}, []
        for drafter, some in proposing.items():
            sequences, windows = [one.sequence for one in some], [one.num_draft_tokens for one in some]
            longest[drafter] = 0
            with disabling_drafter(sequences):
                expected, behind = drafter.cost(sequences, windows), drafter.is_behind(sequences)
                made = drafter.propose(sequences, windows)
                drafts |= {s: draft for s, draft in zip(sequences, made, strict=True) if draft}
                cost += expected
                experts += drafter.experts_read()
                if not behind:
                    longest[drafter] = max((draft.token_ids.numel() for draft in made if draft), default=0)
            timer.mark(drafter)
        on_cpu = self._target.model.device.type == "cpu"
        return DraftOutput(
            [_round(one.sequence, drafts.get(one.sequence), on_cpu=on_cpu) for one in scheduled], cost, longest, experts
        )

    def taps(self, scheduled: list[ScheduledSequence], drafted: DraftOutput) -> Taps | None:
        """Room for the hidden states of the step's tokens that drafters read; None if no sequence has one that does."""
        drafters = {self.of(one.sequence) for one in scheduled}
        configs = [drafter.head.config for drafter in drafters if isinstance(drafter, HeadDrafter)]
        if not configs:
            return None
        layers = sorted({layer for config in configs for layer in config.target_layers})
        rows = sum(_num_rows(one, round) for one, round in zip(scheduled, drafted.rounds, strict=True))
        model, width = self._target.model, len(layers) * configs[0].target_hidden_size
        return Taps(layers, torch.empty(rows, width, dtype=self._dtype, device=model.device))

    def read(
        self,
        scheduled: list[ScheduledSequence],
        drafted: DraftOutput,
        taps: Taps | None,
        timer: StepTimer,
    ) -> DraftOutput:
        """Let every drafter read what the target has just read of its sequences' texts, where that was more than a
        token; and give those that want them the hidden states. ``timer`` gets one part "draft". Returns what was
        drafted, with what this took."""
        if taps:
            first = 0
            for one, round in zip(scheduled, drafted.rounds, strict=True):
                rows = slice(first, first := first + _num_rows(one, round))
                if isinstance(drafter := self.of(one.sequence), HeadDrafter):
                    drafter.take(one.sequence, taps.of(drafter.head.config.target_layers, rows))
        reading: dict[Drafter, list[ScheduledSequence]] = defaultdict(list)
        for one in scheduled:
            if one.num_tokens > 1 and not one.num_draft_tokens and self._will_propose(one.sequence):
                reading[self.of(one.sequence)].append(one)
        cost, experts = drafted.cost, [*drafted.experts]
        for drafter, some in reading.items():
            sequences = [one.sequence for one in some]
            with disabling_drafter(sequences):
                took = drafter.read(sequences, [one.sequence.computed + one.num_tokens for one in some])
                if took.bytes:  # otherwise a counter that it shares with the target has the target's
                    cost, experts = cost + took, experts + drafter.experts_read()
        timer.mark("draft")
        return drafted._replace(cost=cost, experts=experts)

    def _will_propose(self, sequence: Sequence) -> bool:
        """True if there will be room for draft tokens once the next token is known."""
        return self.of(sequence) is not None and self._room(sequence, len(sequence.tokens) + 1) > 0

    def _room(self, sequence: Sequence, known: int) -> int:
        """The most tokens that can be drafted after ``known`` tokens."""
        room = sequence.end - known - 1
        if sequence.config.speculative == "draft":
            room = min(room, self._draft.model.context_length - known)
        return room

    def _wanted(self, sequence: Sequence) -> Drafter | None:
        config, model = sequence.config, self._target.model
        match config.speculative:
            case "off":
                return None
            case "synthetic":  # not shared: it knows only one request's tokens
                tokens = sequence.draft.oracle.tokens[sequence.prompt.length :]
                return Synthetic(config.synthetic_acceptance_rate, tokens, model.vocabulary, model.device)
            case "draft" | "eagle3" | "mtp" | "dflash" | "dspark" as kind:
                key = (kind,)
            case "early_exit":
                key = ("early_exit", model.early_layers(config.early_exit_layer))
            case "ngram":
                key = ("ngram", config.prompt_lookup_min, config.prompt_lookup_max)
        if key not in self._shared:
            self._shared[key] = self._made(*key)
        return self._shared[key]

    def _made(self, kind: str, *numbers: int) -> Drafter:
        target, cache = self._target, self._cache
        if kind == "ngram":
            return PromptLookup(*numbers, target.model.vocabulary, target.model.device)
        if kind == "early_exit":
            return ModelDrafter(target.first(*numbers), cache and cache.target, early_exit=True)
        if kind in HEAD_DRAFTERS:
            return HEAD_DRAFTERS[kind](target.head(kind), cache and cache.heads[kind])
        return ModelDrafter(self._draft, cache and cache.draft)


def _num_rows(one: ScheduledSequence, round: DraftRound) -> int:
    return one.num_tokens + round.num_draft_tokens


def _round(sequence: Sequence, draft: DraftTokens | None, *, on_cpu: bool) -> DraftRound:
    """The round with the uniform numbers of the output positions that it may fill. The q of a token that was not drawn,
    though the target's are, is 1 on it."""
    if draft and draft.q is not None and sequence.draft_sampling.greedy and not sequence.sampling.greedy:
        draft = DraftTokens(draft.token_ids, F.one_hot(draft.token_ids, draft.q.shape[-1]).float())
    count, method = draft.token_ids.numel() if draft else 0, sequence.config.rejection_sample_method
    top = sequence.sampling.top_tokens if on_cpu or sequence.generated < TOP_TOKENS_ON_GPU else 0
    return DraftRound(sequence.sampling, draft, sequence.draws(count + 1), method, top)
