"""The figures of a step: reported to its sequences, and kept to predict the next steps."""

import functools
import time
from collections.abc import Callable
from typing import NamedTuple

from lab.backends.interface import Backend, Verification
from lab.engine.adaptive_window import StepCosts, TheilSen
from lab.engine.async_scheduling import PassAhead
from lab.engine.device_limits import limits_beaten
from lab.engine.drafters import DraftOutput
from lab.engine.failures import report_failures
from lab.engine.memory_budget import Budget
from lab.engine.pass_cost import ExpertsRead, PassCostModel, Span
from lab.engine.scheduler import ScheduledSequence
from lab.engine.sequence import Sequence
from lab.kv_cache.attention_metadata import SdpaChoice
from lab.kv_cache.kv_cache import KVCache
from lab.trace.events import StepTimed, WindowChanged
from lab.trace.roofline import BEATEN, PassCost
from lab.util.device_memory import memory_in_use
from lab.util.step_timer import StepTimer


class StepSnapshot(NamedTuple):
    """A step's figures that are known before its output is there: a GPU is computing it meanwhile.

    Attributes:
        ahead: its pass, if that had been launched before.
        spans: the tokens of each sequence.
        cost: the target's, but for ``experts``.
        reserved: slots of each sequence. Rejected draft tokens free their blocks before the step is reported.
        memory: bytes in use.
    """

    scheduled: list[ScheduledSequence]
    drafted: DraftOutput
    ahead: PassAhead | None
    spans: list[Span]
    cost: PassCost
    reserved: list[int]
    memory: int
    experts: list[ExpertsRead]


class StepStats:
    """Reports a core's steps, and learns from them what a step takes."""

    def __init__(self, target: Backend, draft: Backend | None, cache: KVCache | None, budget: Budget) -> None:
        self._costs = StepCosts()
        self._cached = cache is not None
        self._backends = [target, draft] if draft else [target]
        self._devices = {target.model.device, *target.model.layer_devices} - {None}
        self._passes = PassCostModel(target, cache.target if cache else None)
        self._slot_bytes = functools.cache(budget.slot_bytes)  # a core is dropped when its models change

    def begin(self) -> None:
        """Prepare for a step: passes made outside of steps are not counted."""
        for backend in self._backends:
            if backend.model.expert_counter:
                backend.model.expert_counter.take()

    def experts_read(self) -> list[ExpertsRead]:
        """Experts that the target's passes have read since the last call."""
        return self._passes.experts_read()

    def snapshot(
        self, scheduled: list[ScheduledSequence], drafted: DraftOutput, sdpa: SdpaChoice, ahead: PassAhead | None
    ) -> StepSnapshot:
        """Note a step's figures, once its pass is launched. ``sdpa``: the back end that it was launched with."""
        failures = {part: reason for backend in reversed(self._backends) for part, reason in backend.failures().items()}
        report_failures(failures, [one.sequence for one in scheduled])
        spans = []
        for one, round in zip(scheduled, drafted.rounds, strict=True):
            start, count = one.sequence.computed, round.num_draft_tokens
            spans.append(Span(start, start + one.num_tokens + count, count + 1 if one.complete else 0))
        reserved = [one.sequence.table.num_slots if one.sequence.table else 0 for one in scheduled]
        cost, memory = self._passes.of(spans, sdpa), memory_in_use(self._devices)
        experts = ahead.experts if ahead else self.experts_read()
        return StepSnapshot(scheduled, drafted, ahead, spans, cost, reserved, memory, experts)

    def report(
        self,
        snapshot: StepSnapshot,
        kinds: list[str],
        timer: StepTimer,
        failed: set[Sequence],
        finish: Callable[[Sequence], None],
    ) -> float:
        """Report the step's time to every sequence in it that has not ``failed``, and ``finish`` those that are done.
        Returns when the step's time was taken, by ``time.perf_counter``."""
        parts, total = timer.read()
        taken = time.perf_counter()
        scheduled, drafted, ahead = snapshot.scheduled, snapshot.drafted, snapshot.ahead
        if ahead:
            parts["verify"] += ahead.launched.timer.read()[0]["verify"]
            total += 1000 * ahead.before
        total = max(total, sum(parts.values()))
        draft_ms = parts["draft"] + sum(parts[drafter] for drafter in drafted.longest)
        around = total - parts["verify"] - draft_ms
        tokens = sum(stop - start for start, stop, _ in snapshot.spans)
        drafting = sum((read.cost for read in drafted.experts), drafted.cost)
        verifying = sum((read.cost for read in snapshot.experts), snapshot.cost)
        # Reading a text, for the first time or again, costs less per token than a round does.
        reading = "prefill" in kinds or any(one.num_tokens > 1 and one.sequence.table for one in scheduled)
        if not reading:
            self._costs.observe(tokens, parts["verify"], around)
        for drafter, longest in drafted.longest.items():
            if longest:
                drafter.times.observe(longest, parts[drafter])
        for one, kind, (start, stop, _), slots in zip(scheduled, kinds, snapshot.spans, snapshot.reserved, strict=True):
            sequence = one.sequence
            if sequence in failed or sequence.finished:
                continue
            slot_bytes = self._slot_bytes(sequence.config)
            sequence.recorder.emit(
                StepTimed,
                step=sequence.report.step,
                step_kind=kind,
                target_tokens=stop - start,
                batch_sequences=len(scheduled),
                batch_tokens=tokens,
                draft_ms=draft_ms,
                verify_ms=parts["verify"],
                sample_ms=parts["sample"],
                rest_ms=around - parts["sample"],
                total_ms=total,
                draft_bytes=drafting.bytes,
                draft_flops=drafting.flops,
                verify_bytes=verifying.bytes,
                verify_flops=verifying.flops,
                kv_tokens=sequence.computed,
                kv_reserved_bytes=slots * slot_bytes,
                kv_used_bytes=sequence.table.num_used * slot_bytes if sequence.table else 0,
                memory_bytes=snapshot.memory,
            )
            sequence.report.step += 1
            limits = sequence.report.limits
            if limits and limits.least_ms(verifying) > BEATEN * parts["verify"] > 0:
                limits_beaten(limits)
            if sequence.reason:
                finish(sequence)
        return taken

    def adapt(self, sequence: Sequence, verified: Verification, drafting: TheilSen, running: list[Sequence]) -> None:
        """Let a sequence's window follow a verified round. ``drafting``: its drafter's times."""
        drafted, window, costs = len(verified.draft_token_ids), sequence.draft.window, self._costs
        num_seqs, num_verified = len(running), min(verified.num_accepted + 1, drafted)
        known = num_seqs if self._cached else sum(len(one.tokens) for one in running)
        if window.observe(verified.num_accepted, num_verified, num_seqs, known, costs, drafting):
            sequence.recorder.emit(
                WindowChanged,
                step=sequence.report.step + 1,
                gamma=window.gamma,
                acceptance=window.acceptance,
                draft_ms=drafting.ms(1) if drafting.known else None,
                verify_ms=costs.passes.ms(known + num_seqs * window.gamma) if costs.passes.compared else None,
            )
