"""What a step reports to its sequences, and what its time says about the next ones."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import NamedTuple

from lab.backends.gpu.async_scheduling import Ahead
from lab.engine.adaptive_window import Costs
from lab.engine.drafting import Drafted
from lab.engine.memory_budget import Budget
from lab.engine.pass_cost import PassWork, Span
from lab.engine.scheduler import Turn
from lab.engine.sequence import Sequence
from lab.engine.verification import Round
from lab.kv_cache.attention_metadata import SdpaChoice
from lab.kv_cache.kv_cache import Cache
from lab.models.language_model import LanguageModel
from lab.trace.events import StepTimed
from lab.trace.roofline import PassCost
from lab.util.device_memory import memory_in_use
from lab.util.step_timer import StepTimer


class Known(NamedTuple):
    """What a step reports of its pass, found out before its output is there: a GPU is computing it meanwhile.

    Attributes:
        turns, drafted: what the step computes, and what its drafters did.
        ahead: its pass, if that had been launched before.
        spans: the tokens of each sequence.
        work: the target's.
        reserved: slots of each sequence. Rejected proposals give their blocks back before the step is reported.
        memory: bytes in use.
    """

    turns: list[Turn]
    drafted: Drafted
    ahead: Ahead | None
    spans: list[Span]
    work: PassCost
    reserved: list[int]
    memory: int


class Reporting:
    """Reports a pool's steps.

    Attributes:
        costs: what its steps took, for adaptive windows.
    """

    def __init__(self, target: LanguageModel, cache: Cache | None, budget: Budget) -> None:
        self.costs = Costs()
        self._devices = {target.device, *target.layer_devices}
        self._passes = PassWork(target, cache.target if cache else None)
        self._token_bytes = functools.cache(budget.token_bytes)  # a pool is dropped when its models change

    def known(
        self, turns: list[Turn], rounds: list[Round], sdpa: SdpaChoice, drafted: Drafted, ahead: Ahead | None
    ) -> Known:
        """To be called when the pass has been launched. ``sdpa``: what it was launched with."""
        spans = []
        for turn, round in zip(turns, rounds, strict=True):
            start = turn.sequence.computed
            spans.append(Span(start, start + turn.count + round.window, round.window + 1 if turn.complete else 0))
        reserved = [turn.sequence.table.capacity if turn.sequence.table else 0 for turn in turns]
        return Known(turns, drafted, ahead, spans, self._passes.of(spans, sdpa), reserved, memory_in_use(self._devices))

    def report(
        self,
        known: Known,
        kinds: list[str],
        clock: StepTimer,
        broken: set[Sequence],
        finish: Callable[[Sequence], None],
    ) -> float:
        """Report the step's time to every sequence in it that is not ``broken``, and ``finish`` those that are done.

        Returns:
            When the step's time was taken, by ``time.perf_counter``.
        """
        parts, total = clock.read()
        taken = time.perf_counter()
        turns, drafted, ahead = known.turns, known.drafted, known.ahead
        if ahead:
            parts["verify"] += ahead.clock.read()[0]["verify"]
            total += 1000 * ahead.before
        total = max(total, sum(parts.values()))
        draft_ms = parts["draft"] + sum(parts[drafter] for drafter in drafted.windows)
        around = total - parts["verify"] - draft_ms
        tokens = sum(stop - start for start, stop, _ in known.spans)
        # Reading a text, for the first time or again, costs less per token than a round does.
        reading = "prefill" in kinds or any(turn.count > 1 and turn.sequence.table for turn in turns)
        if not reading:
            self.costs.observe(tokens, parts["verify"], around)
        for drafter, window in drafted.windows.items():
            if window:
                drafter.times.observe(window, parts[drafter])
        for turn, kind, (start, stop, _), slots in zip(turns, kinds, known.spans, known.reserved, strict=True):
            sequence = turn.sequence
            if sequence in broken or sequence.finished:
                continue
            kv_bytes = self._token_bytes(sequence.config)
            sequence.recorder.emit(
                StepTimed,
                step=sequence.step,
                step_kind=kind,
                target_tokens=stop - start,
                batch_sequences=len(turns),
                batch_tokens=tokens,
                draft_ms=draft_ms,
                verify_ms=parts["verify"],
                sample_ms=parts["sample"],
                rest_ms=around - parts["sample"],
                total_ms=total,
                draft_bytes=drafted.work.bytes,
                draft_flops=drafted.work.flops,
                verify_bytes=known.work.bytes,
                verify_flops=known.work.flops,
                kv_tokens=sequence.computed,
                kv_reserved_bytes=slots * kv_bytes,
                kv_used_bytes=sequence.computed * kv_bytes,
                memory_bytes=known.memory,
            )
            sequence.step += 1
            if sequence.reason:
                finish(sequence)
        return taken
