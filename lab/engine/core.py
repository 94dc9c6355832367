"""Requests that share a cache, and the step that computes them as one batch.

A step takes every sequence's tokens that are not computed yet (a whole prompt at
first, one token afterwards), lets drafters add proposals, computes them all in
one pass, judges, commits, and rolls the cache back to what was kept. Prefill,
plain decoding and verification are the same step with different numbers of tokens.
"""

from __future__ import annotations

import functools
import logging
import time

import torch
from transformers import PreTrainedTokenizerBase

from lab.backends.gpu.async_scheduling import Ahead, launch_ahead
from lab.backends.torch.torch_backend import NewTokens, forward
from lab.engine.detokenizer import token_text
from lab.engine.drafting import Drafters, give_up
from lab.engine.error_messages import NOT_FINITE, explain
from lab.engine.memory_budget import Budget
from lab.engine.scheduler import Scheduler, Turn
from lab.engine.sequence import Sequence
from lab.engine.step_stats import Reporting
from lab.engine.verification import Outcome, Round, commit, judge
from lab.errors import LabError
from lab.kv_cache.kv_cache import Cache, PoolSetting
from lab.models.language_model import LanguageModel
from lab.trace.events import FellBack, Part, Prefilled, WindowChanged
from lab.util.device_copy import several_on_device
from lab.util.step_timer import StepTimer

log = logging.getLogger(__name__)

TRY_AGAIN_SECONDS = 60
"""How often at most a pool that is never idle tries again what there was no memory for."""


class Pool:
    """One cache, its queue and its batch. ``setting.num_blocks`` 0: no cache.

    Attributes:
        failed: sequences that a step could not continue, and why; ``Pools`` decides what becomes of them.
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
        async_scheduling: bool = True,
    ) -> None:
        self.setting = setting
        self.cache = None
        if setting.num_blocks:
            self.cache = Cache(setting, target, draft, kernels=kernels, cuda_graphs=cuda_graphs)
        self._drafters = Drafters(target, draft, self.cache)
        self.scheduler = Scheduler(
            self.cache.blocks if self.cache else None,
            self.cache.copy_block if self.cache else None,
            self._drafters.window,  # not a method of the pool: with no cycle, a dropped pool frees its cache at once
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
        )
        self.failed: list[tuple[Sequence, Exception]] = []
        self._target = target
        self._draft = draft
        self._token_text = functools.cache(functools.partial(token_text, tokenizer))  # of every token met
        self._reporting = Reporting(target, self.cache, budget)
        self._async_scheduling = async_scheduling
        self._ahead: Ahead | None = None
        self._tried = time.monotonic()

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence, with the drafter it asks for."""
        if not len(self.scheduler) or time.monotonic() - self._tried >= TRY_AGAIN_SECONDS:
            self._try_again()
        self._drafters.join(sequence)
        self.scheduler.add(sequence)

    def _try_again(self) -> None:
        """There may be memory now for what there was none for. If not, it costs a failed step, or a capture."""
        self._tried = time.monotonic()
        self.scheduler.grow()
        if self.cache and self.cache.graphs:
            self.cache.graphs.try_again()

    def close(self) -> None:
        """Before it is dropped."""
        if self.cache and self.cache.graphs:
            self.cache.graphs.drop()

    @property
    def worth_keeping(self) -> bool:
        """Whether it holds prefixes that can still be found, or captured steps."""
        if self.cache is None:
            return False
        return self.cache.blocks.occupancy().cached > 0 or bool(self.cache.graphs and self.cache.graphs.count)

    def reap(self) -> None:
        """End the sequences that have been cancelled."""
        for sequence in (*self.scheduler.running, *self.scheduler.waiting):
            if sequence.cancelled.is_set():
                self.scheduler.remove(sequence)
                sequence.finish("cancelled")
        self.settle()

    def shrink(self) -> None:
        """Make the next step smaller, after one that ran out of memory, if it can be."""
        self.scheduler.shrink()
        for sequence in self.scheduler.running:
            sequence.keep(sequence.computed)  # what was drafted for the failed step is drafted again

    # -- one step ----------------------------------------------------------------------------

    @torch.inference_mode()
    def step(self) -> None:
        """Compute one batch. Raises what the target's forward pass raises; then nothing is committed."""
        ahead, self._ahead = self._ahead, None
        clock = StepTimer(self._target.device)
        turns = self.scheduler.schedule(admit=ahead is None)
        clock.mark("rest")
        drafted = self._drafters.propose(turns, clock)
        rounds = [Round(turn.sequence, drafted.proposals.get(turn.sequence)) for turn in turns]
        sdpa = self.setting.prefill_attention if any(turn.count > 1 for turn in turns) else "auto"
        logits = ahead.logits_of(turns) if ahead else None
        if logits is None:
            ahead = None  # nothing of it is used
            storage = self.cache.target if self.cache else None
            logits = forward(self._target, self._new_tokens(turns, rounds), storage, sdpa)
        self._tell_failures(turns)
        clock.mark("verify")
        known = self._reporting.known(turns, rounds, sdpa, drafted, ahead)
        clock.mark("rest")
        complete = [round for turn, round in zip(turns, rounds, strict=True) if turn.complete]
        judging = None
        if complete:
            kernels = self.cache and self.cache.kernels
            judging = judge(logits, complete, native=self._target.native.model is not None, kernels=kernels)
        clock.mark("sample")
        if judging and self._can_launch_ahead(turns):
            sequences = [turn.sequence for turn in turns]
            self._ahead = launch_ahead(self._target, self.cache.target, sequences, judging.own)
        judged = judging.outcomes() if judging else []
        outcomes = dict(zip((round.sequence for round in complete), judged, strict=True))

        told = [self._tell(turn, round, outcomes.get(turn.sequence)) for turn, round in zip(turns, rounds, strict=True)]
        broken = {sequence for sequence, _ in self.failed}
        taken = self._reporting.report(known, told, clock, broken, self._finish)
        if self._ahead:
            self._ahead.before = time.perf_counter() - taken

    def _can_launch_ahead(self, turns: list[Turn]) -> bool:
        """Whether the next step will be another token of each of these turns' sequences, as far as is known now."""
        graphs, scheduler = self.cache and self.cache.graphs, self.scheduler
        if not (self._async_scheduling and graphs and graphs.on) or scheduler.may_admit:
            return False
        plain = all(turn.complete and not turn.window for turn in turns)  # even if nothing was proposed in the window
        return plain and len(turns) == len(scheduler.running)

    def settle(self) -> None:
        """Let go of what was launched ahead, if no sequence is left to use it."""
        if not self.scheduler.running:
            self._ahead = None

    def _new_tokens(self, turns: list[Turn], rounds: list[Round]) -> list[NewTokens]:
        """Each turn's part of the target's forward pass: known tokens, then proposals."""
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
        """Commit a turn's outcome and return the kind of step it was."""
        sequence = turn.sequence
        again = sequence.table is not None and (turn.count > 1 or outcome is None)  # known tokens, computed once more
        prefill = not sequence.generated or again
        kind = "prefill" if prefill and not round.window else "verify" if round.window else "decode"
        if outcome is None:  # a chunk of known tokens
            sequence.keep(sequence.computed + turn.count)
        elif not outcome.finite:
            self.failed.append((sequence, LabError(NOT_FINITE)))
        else:
            if not sequence.generated:
                sequence.recorder.emit(Prefilled, tokens=sequence.prompt_length, cached_tokens=sequence.cached_tokens)
            try:
                commit(sequence, outcome, self._token_text)
            except Exception as error:  # this sequence's alone: the others go on
                log.exception("the tokens of a sequence could not be told")
                self.scheduler.remove(sequence)
                sequence.finish("error", explain(error))
                return kind
            sequence.keep(len(sequence.tokens) - 1)  # the newest token is computed by the next step
            if not outcome.draft_finite:
                give_up(sequence, "Its output is not finite.")
            elif sequence.drafter and kind != "prefill" and not sequence.reason:
                self._follow(sequence, outcome)
        if sequence.table and sequence.shares_prefixes:
            # A block that drafting requests can find must hold the draft's keys and values as well.
            drafted = sequence.config.speculative == "draft"
            length = min(sequence.computed, sequence.draft_length) if drafted else sequence.computed
            sequence.table.store_full(sequence.tokens, length, sequence.root, sequence.config.cache_priority)
        return kind

    def _follow(self, sequence: Sequence, outcome: Outcome) -> None:
        judged = min(outcome.accepted + 1, len(outcome.proposed))
        running, drafting, costs = self.scheduler.running, sequence.drafter.times, self._reporting.costs
        sequences = len(running)
        known = sequences if self.cache else sum(len(one.tokens) for one in running)
        if sequence.window.observe(outcome.accepted, judged, sequences, known, costs, drafting):
            gamma = sequence.window.gamma
            sequence.recorder.emit(
                WindowChanged,
                step=sequence.step + 1,
                gamma=gamma,
                acceptance=sequence.window.acceptance,
                draft_ms=drafting.ms(1) if drafting.known else None,
                verify_ms=costs.pass_ms(known + sequences * gamma) if costs.compared else None,
            )

    def _finish(self, sequence: Sequence) -> None:
        self.scheduler.remove(sequence)
        sequence.finish(sequence.reason)

    def _tell_failures(self, turns: list[Turn]) -> None:
        """Tell every sequence once which parts its steps go on without, even one that joins later."""
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
