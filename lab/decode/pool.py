"""Requests that share a cache, and the step that computes them as one batch.

A step takes every sequence's tokens that are not computed yet (a whole prompt at
first, one token afterwards), lets drafters add proposals, computes them all in
one pass, judges, commits, and rolls the cache back to what was kept. Prefill,
plain decoding and verification are the same step with other numbers.
"""

from __future__ import annotations

import functools
import logging
import os
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import psutil
import torch
from transformers import PreTrainedTokenizerBase

from lab.config import LabError
from lab.decode.clock import StepClock
from lab.decode.drafters import Drafter, Drafters, Proposals
from lab.decode.forward import NewTokens, forward
from lab.decode.outcome import Outcome, Round, commit, judge
from lab.decode.scheduler import Scheduler, Turn
from lab.decode.sequence import Sequence
from lab.decode.text import token_text
from lab.decode.window import Costs
from lab.decode.work import PassWork, Span
from lab.kv.cache import Budget, Cache, PoolSetting
from lab.pair.devices import is_out_of_memory
from lab.pair.models import LanguageModel
from lab.trace.events import FellBack, Part, Prefilled, StepTimed, WindowChanged
from lab.trace.roofline import Work
from lab.transfer import several_on_device

log = logging.getLogger(__name__)

LOOKS_A_SECOND = 20
"""At the process's memory."""


class Drafted(NamedTuple):
    """What a step's drafters have done.

    Attributes:
        proposals: by sequence; those with none are not in it.
        work: moved and computed.
        caught_up: a drafter read more than it does round by round.
    """

    proposals: dict[Sequence, Proposals]
    work: Work
    caught_up: bool


class Pool:
    """One cache, its queue and its batch. ``setting.num_blocks`` 0: no cache.

    Attributes:
        failed: sequences that a step could not go on with, and why; for the engine to decide about.
    """

    def __init__(
        self,
        setting: PoolSetting,
        target: LanguageModel,
        draft: LanguageModel | None,
        tokenizer: PreTrainedTokenizerBase,
        budget: Budget,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        kernels: bool = False,
        cuda_graphs: bool = False,
    ) -> None:
        self.setting = setting
        self.cache = None
        if setting.num_blocks:
            self.cache = Cache(setting, target, draft, kernels=kernels, cuda_graphs=cuda_graphs)
        self.scheduler = Scheduler(
            self.cache.blocks if self.cache else None,
            self.cache.copy_block if self.cache else None,
            functools.partial(proposed_tokens, draft),  # no method of its own: a pool goes, cache and all, when dropped
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
        )
        self.failed: list[tuple[Sequence, Exception]] = []
        self._target = target
        self._devices = {target.device, *target.layer_devices}
        self._draft = draft
        self._token_text = functools.cache(functools.partial(token_text, tokenizer))  # a text for every token met
        self._token_bytes = functools.cache(budget.token_bytes)  # a pool ends when its models change
        self._costs = Costs()
        self._drafters = Drafters(target, draft, self.cache)
        self._passes = PassWork(target, self.cache.target if self.cache else None)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence; it gets the drafter it asks for, if it has none of its own."""
        sequence.drafter = None if sequence.gave_up_drafter else self._drafters.of(sequence)
        self.scheduler.add(sequence)

    @property
    def worth_keeping(self) -> bool:
        """Whether something in it could still be found, or steps have been captured that would be captured again."""
        if self.cache is None:
            return False
        return self.cache.blocks.occupancy().cached > 0 or bool(self.cache.graphs and self.cache.graphs.count)

    def reap(self) -> None:
        """End the sequences that have been cancelled."""
        for sequence in (*self.scheduler.running, *self.scheduler.waiting):
            if sequence.cancelled.is_set():
                self.scheduler.remove(sequence)
                sequence.finish("cancelled")

    def shrink(self) -> bool:
        """After a step that the device had no memory for: the next one is smaller. False if it cannot be."""
        if not self.scheduler.shrink():
            return False
        for sequence in self.scheduler.running:
            sequence.keep(sequence.computed)  # what was drafted for the failed step is drafted again
        return True

    # -- one step ----------------------------------------------------------------------------

    @torch.inference_mode()
    def step(self) -> None:
        """Compute one batch. Raises what the target's forward raises; nothing is committed then."""
        clock = StepClock(self._target.device)
        turns = self.scheduler.schedule()
        clock.mark("rest")
        drafted = self._propose(turns)
        clock.mark("draft")
        rounds = [Round(turn.sequence, drafted.proposals.get(turn.sequence)) for turn in turns]
        batch = self._new_tokens(turns, rounds)
        sdpa = self.setting.prefill_attention if any(turn.count > 1 for turn in turns) else "auto"
        logits = forward(self._target, batch, self.cache.target if self.cache else None, sdpa)
        self._tell_failures(turns)
        clock.mark("verify")
        complete = [round for turn, round in zip(turns, rounds, strict=True) if turn.complete]
        judged = judge(logits, complete, native=self._target.native.model is not None) if complete else []
        outcomes = dict(zip((round.sequence for round in complete), judged, strict=True))
        clock.mark("sample")

        told = [self._tell(turn, round, outcomes.get(turn.sequence)) for turn, round in zip(turns, rounds, strict=True)]
        self._close(clock, turns, told, batch, drafted)

    def _propose(self, turns: list[Turn]) -> Drafted:
        """Every drafter reads and proposes for all of its sequences. One that fails is not asked again."""
        reading: dict[Drafter, list[Turn]] = defaultdict(list)
        proposing: dict[Drafter, list[Turn]] = defaultdict(list)
        for turn in turns:
            if turn.window:
                proposing[turn.sequence.drafter].append(turn)
            elif turn.count > 1 and will_propose(self._draft, turn.sequence):
                reading[turn.sequence.drafter].append(turn)
        proposals: dict[Sequence, Proposals] = {}
        drafting, caught_up = Work(), False
        for drafter, theirs in reading.items():
            sequences = [turn.sequence for turn in theirs]
            with self._given_up_by(sequences):
                drafting += drafter.read(sequences, [turn.sequence.computed + turn.count for turn in theirs])
        for drafter, theirs in proposing.items():
            sequences, windows = [turn.sequence for turn in theirs], [turn.window for turn in theirs]
            work = drafter.work(sequences, windows)
            caught_up |= drafter.is_behind(sequences)
            with self._given_up_by(sequences):
                made = drafter.propose(sequences, windows)
                proposals |= {s: some for s, some in zip(sequences, made, strict=True) if some}
                drafting += work
        return Drafted(proposals, drafting, caught_up)

    @contextmanager
    def _given_up_by(self, sequences: list[Sequence]) -> Iterator[None]:
        """A drafter that fails here is not asked again."""
        try:
            yield
        except Exception as error:
            log.warning("a drafter failed", exc_info=True)
            for sequence in sequences:
                self._give_up_drafter(sequence, explain(error))

    def _new_tokens(self, turns: list[Turn], rounds: list[Round]) -> list[NewTokens]:
        """What each turn brings to the target's forward: known tokens, and proposals after them."""
        starts = [turn.sequence.computed for turn in turns]
        known = [turn.sequence.tokens[start : start + turn.count] for turn, start in zip(turns, starts, strict=True)]
        batch = []
        for turn, round, start, new in zip(
            turns, rounds, starts, several_on_device(known, self._target.device), strict=True
        ):
            if round.proposals:
                new = torch.cat([new, round.proposals.tokens])
            batch.append(NewTokens(new, start, turn.sequence.table, keep=round.window + 1 if turn.complete else 0))
        return batch

    def _tell(self, turn: Turn, round: Round, outcome: Outcome | None) -> str:
        """Commit what a turn gave; returns what kind of step it was."""
        sequence = turn.sequence
        prefill = not sequence.generated or (turn.count > 1 and sequence.table is not None)
        kind = "prefill" if prefill and not round.window else "verify" if round.window else "decode"
        if outcome is None:  # a part of a prompt
            sequence.keep(sequence.computed + turn.count)
        elif not outcome.finite:
            self.failed.append((sequence, LabError(NOT_FINITE)))
        else:
            if not sequence.generated:
                sequence.recorder.emit(Prefilled, tokens=sequence.prompt_length, cached_tokens=sequence.cached_tokens)
            commit(sequence, outcome, self._token_text)
            sequence.keep(len(sequence.tokens) - 1)  # the newest token is computed by the next step
            if not outcome.draft_finite:
                self._give_up_drafter(sequence, "Its output is not finite.")
            elif sequence.drafter and kind != "prefill" and not sequence.reason:
                self._follow(sequence, outcome)
        if sequence.table and sequence.config.enable_prefix_caching:
            # A block that drafting requests may find holds the draft's keys and values as well.
            drafted = sequence.config.speculative == "draft"
            length = min(sequence.computed, sequence.draft_length) if drafted else sequence.computed
            sequence.table.store_full(sequence.tokens, length, sequence.root, sequence.config.cache_priority)
        return kind

    def _follow(self, sequence: Sequence, outcome: Outcome) -> None:
        judged = min(outcome.accepted + 1, len(outcome.proposed))
        sequences = len(self.scheduler.running)
        if sequence.window.observe(outcome.accepted, judged, sequences, self._costs):
            gamma = sequence.window.gamma
            sequence.recorder.emit(
                WindowChanged,
                step=sequence.step + 1,
                gamma=gamma,
                acceptance=sequence.window.acceptance,
                draft_ms=self._costs.proposal_ms(),
                verify_ms=self._costs.pass_ms(sequences * (gamma + 1)),
            )

    def _close(
        self, clock: StepClock, turns: list[Turn], kinds: list[str], batch: list[NewTokens], drafted: Drafted
    ) -> None:
        """Time the step for every sequence in it, and let go of those that are done."""
        parts, total = clock.read()
        total = max(total, sum(parts.values()))
        around = total - parts["verify"] - parts["draft"]
        memory = memory_in_use(self._devices)
        broken = {sequence for sequence, _ in self.failed}
        spans = [Span(new.start, new.stop, new.keep) for new in batch]
        tokens, verifying = sum(stop - start for start, stop, _ in spans), self._passes.of(spans)
        if "prefill" not in kinds:
            window = 0 if drafted.caught_up else max(keep - 1 for *_, keep in spans)
            self._costs.observe(tokens, parts["verify"], around, window, parts["draft"])
        for turn, kind, (start, stop, _) in zip(turns, kinds, spans, strict=True):
            sequence = turn.sequence
            if sequence in broken:
                continue
            kv_bytes = self._token_bytes(sequence.config)
            sequence.recorder.emit(
                StepTimed,
                step=sequence.step,
                step_kind=kind,
                target_tokens=stop - start,
                batch_sequences=len(turns),
                batch_tokens=tokens,
                draft_ms=parts["draft"],
                verify_ms=parts["verify"],
                sample_ms=parts["sample"],
                rest_ms=around - parts["sample"],
                total_ms=total,
                draft_bytes=drafted.work.bytes,
                draft_flops=drafted.work.flops,
                verify_bytes=verifying.bytes,
                verify_flops=verifying.flops,
                kv_tokens=sequence.computed,
                kv_reserved_bytes=sequence.table.capacity * kv_bytes if sequence.table else 0,
                kv_used_bytes=sequence.computed * kv_bytes,
                memory_bytes=memory,
            )
            sequence.step += 1
            if sequence.reason:
                self.scheduler.remove(sequence)
                sequence.finish(sequence.reason)

    def _tell_failures(self, turns: list[Turn]) -> None:
        """Every sequence is told once of what its steps go on without, the one that joins later too."""
        for part, reason in self._failures().items():
            for turn in turns:
                if part not in turn.sequence.gave_up:
                    turn.sequence.gave_up.add(part)
                    turn.sequence.recorder.emit(FellBack, part=part, reason=reason)

    def _failures(self) -> dict[Part, str]:
        models = [model.compile_failure for model in (self._target, self._draft) if model]
        found = {"compile": next(filter(None, models), None), "kernel": self._target.native.failure}
        if self.cache:
            found["kernel"] = found["kernel"] or self.cache.kernels.failure
            found["cuda_graph"] = self.cache.graphs and self.cache.graphs.failure
        return {part: reason for part, reason in found.items() if reason}

    # -- drafting ----------------------------------------------------------------------------

    def _give_up_drafter(self, sequence: Sequence, reason: str) -> None:
        sequence.drafter, sequence.gave_up_drafter = None, True
        sequence.recorder.emit(FellBack, part="drafter", reason=reason)


def proposed_tokens(draft: LanguageModel | None, sequence: Sequence) -> int:
    """Tokens to propose: gamma, but none with the prompt, and never past the sequence's end or the
    draft's context. A round of g proposals yields up to g + 1 tokens.
    """
    if sequence.drafter is None or not sequence.generated:
        return 0
    return max(0, min(sequence.window.gamma, _room(draft, sequence, len(sequence.tokens))))


def will_propose(draft: LanguageModel | None, sequence: Sequence) -> bool:
    """Whether there will be room for proposals once the next token is known."""
    return sequence.drafter is not None and _room(draft, sequence, len(sequence.tokens) + 1) > 0


def _room(draft: LanguageModel | None, sequence: Sequence, known: int) -> int:
    """Tokens that can be proposed after ``known`` ones."""
    room = sequence.end - known - 1
    if sequence.config.speculative == "draft":
        room = min(room, draft.context_length - known)
    return room


NOT_FINITE = "The model's output is not finite. Try dtype='float32', or other weights."


def explain(error: Exception) -> str:
    """An error in a sentence for the user."""
    if isinstance(error, LabError):
        return str(error)
    if is_out_of_memory(error):
        return "The device ran out of memory. Use fewer blocks, a shorter prompt or a smaller model."
    return f"The engine failed in this step ({type(error).__name__}: {error})."


def memory_in_use(devices: set[torch.device]) -> int:
    """Bytes: CUDA's peak since it was reset, of all its devices, or the resident size of this process."""
    if cuda := [device for device in devices if device.type == "cuda"]:
        # What max_memory_allocated looks up. Most of its time goes into laying out the numbers it does not return.
        stats = [torch.cuda.memory_stats_as_nested_dict(device) for device in cuda]
        return sum(stat["allocated_bytes"]["all"]["peak"] for stat in stats)
    return _resident(os.getpid(), int(time.monotonic() * LOOKS_A_SECOND))


@functools.lru_cache(maxsize=1)
def _resident(pid: int, look: int) -> int:
    """Bytes. Asking the system takes as long as a tenth of a step, so it is not asked in every one."""
    return _process(pid).memory_info().rss


@functools.cache
def _process(pid: int) -> psutil.Process:
    """Looking a process up takes milliseconds, so it is kept; by its id, for a forked worker is another one."""
    return psutil.Process(pid)
