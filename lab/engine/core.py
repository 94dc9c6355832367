"""An engine core: requests that share a cache, and the step that computes them as one batch.

A step takes every sequence's tokens that are not computed yet (a whole prompt at first, one token afterwards), lets
drafters add draft tokens, computes them all in one pass, verifies, commits, and rolls the cache back to what was
accepted. Prefill, plain decoding and verification are the same step with different numbers of tokens.

Lesson 12, all together. (vLLM: EngineCore.)
"""

import functools
import logging

import torch
from transformers import PreTrainedTokenizerBase

from lab.backends.interface import Backend, DraftRound, NewTokens, PendingVerification, Verification
from lab.engine.async_scheduling import AsyncScheduling
from lab.engine.detokenizer import token_text
from lab.engine.drafters import Drafters, DraftOutput
from lab.engine.failures import NOT_FINITE, disable_drafter, explain
from lab.engine.memory_budget import Budget
from lab.engine.scheduler import ScheduledSequence, Scheduler
from lab.engine.sequence import OWN_KEYS, Sequence
from lab.engine.step_limits import StepLimits
from lab.engine.step_stats import StepStats
from lab.engine.verification import commit
from lab.errors import LabError
from lab.kv_cache.kv_cache import CacheConfig, KVCache
from lab.models.language_model import Taps
from lab.trace.events import Prefilled
from lab.util.device_copy import several_on_device
from lab.util.step_timer import StepTimer

log = logging.getLogger(__name__)


class EngineCore:
    """One cache, its queue and its batch. ``config.num_blocks`` 0: no cache.

    Attributes:
        failed: sequences that a step could not continue, and why; ``EngineCores`` decides what becomes of them.
    """

    def __init__(
        self,
        config: CacheConfig,
        target: Backend,
        draft: Backend | None,
        tokenizer: PreTrainedTokenizerBase,
        budget: Budget,
        limits: StepLimits,
        *,
        async_scheduling: bool = True,
    ) -> None:
        self.config = config
        self.target, self.draft = target, draft
        for recurrent in filter(None, (one.model.recurrent for one in (target, draft) if one)):
            recurrent.max_states = budget.running_states
        self.cache = None
        if config.num_blocks:
            self.cache = KVCache(config, target.model, draft and draft.model, target.model.heads, budget.max_states)
        self._drafters = Drafters(target, draft, self.cache)
        self.scheduler = Scheduler(
            self.cache.blocks if self.cache else None,
            self.cache.copy_block if self.cache else None,
            self._drafters.window,  # not a method of the core: with no cycle, a dropped core frees its cache at once
            limits,
        )
        self.failed: list[tuple[Sequence, Exception]] = []
        self._token_text = functools.cache(functools.partial(token_text, tokenizer))  # of every token met
        self._stats = StepStats(target, draft, self.cache, budget)
        self._async = AsyncScheduling(
            target, self.cache, self._drafters, self.scheduler, self._stats.experts_read, on=async_scheduling
        )

    def add(self, sequence: Sequence) -> None:
        self._drafters.assign(sequence)
        self.scheduler.add(sequence)

    def finish(self, sequence: Sequence) -> None:
        self.scheduler.remove(sequence)
        sequence.finish(sequence.reason)

    def settle(self) -> None:
        """Drop the pass that was launched ahead, if no sequence is left to use it."""
        if not self.scheduler.running:
            self._async.take()

    # -- one step ----------------------------------------------------------------------------

    @torch.inference_mode()
    def step(self) -> None:
        """Compute one batch. Raises what the target's forward pass raises; then nothing is committed."""
        timer = StepTimer(self.target.model.device)
        ahead = self._async.take()
        self._stats.begin()

        scheduled = self.scheduler.schedule(admit=ahead is None)
        timer.mark("rest")

        drafted = self._drafters.propose(scheduled, timer)

        logits = ahead.logits_of(scheduled) if ahead else None
        used = ahead if logits is not None else None
        taps = self._drafters.taps(scheduled, drafted)
        logits = self._forward(scheduled, drafted, taps) if logits is None else logits
        timer.mark("verify")
        drafted = self._drafters.read(scheduled, drafted, taps, timer)

        snapshot = self._stats.snapshot(scheduled, drafted, self._sdpa(scheduled), used)
        timer.mark("rest")

        pending = self._verify(logits, scheduled, drafted)
        timer.mark("sample")
        self._async.launch(scheduled, pending)

        kinds = self._commit(scheduled, drafted, pending)

        read_at = self._stats.report(snapshot, kinds, timer, {sequence for sequence, _ in self.failed}, self.finish)
        self._async.note_host_time(read_at)

    def _forward(self, scheduled: list[ScheduledSequence], drafted: DraftOutput, taps: Taps | None) -> torch.Tensor:
        """One packed pass over known tokens and draft tokens. Returns [rows to verify, vocabulary]."""
        starts = [one.sequence.computed for one in scheduled]
        known = [one.sequence.tokens[a : a + one.num_tokens] for one, a in zip(scheduled, starts, strict=True)]
        news = several_on_device(known, self.target.model.device)
        batch = []
        for one, round, start, new in zip(scheduled, drafted.rounds, starts, news, strict=True):
            if round.draft:
                new = torch.cat([new, round.draft.token_ids])
            keep = round.num_draft_tokens + 1 if one.complete else 0
            batch.append(NewTokens(new, start, one.sequence.table, keep))
        how = (self._sdpa(scheduled),) if taps is None else (self._sdpa(scheduled), taps)
        return self.target.forward(batch, self.cache.target if self.cache else None, *how)

    def _sdpa(self, scheduled: list[ScheduledSequence]) -> str:
        return self.config.prefill_attention if any(one.num_tokens > 1 for one in scheduled) else "auto"

    def _verify(
        self, logits: torch.Tensor, scheduled: list[ScheduledSequence], drafted: DraftOutput
    ) -> PendingVerification | None:
        """Verify the rounds of all sequences whose newest token was computed; None if there are none."""
        rounds = [round for one, round in zip(scheduled, drafted.rounds, strict=True) if one.complete]
        return self.target.verify(logits, rounds) if rounds else None

    def _commit(
        self, scheduled: list[ScheduledSequence], drafted: DraftOutput, pending: PendingVerification | None
    ) -> list[str]:
        """Commit every sequence's verification. Returns the kinds of step that it was for each."""
        verified = iter(pending.results() if pending else ())
        pairs = [(one, next(verified) if one.complete else None) for one in scheduled]
        return [self._commit_one(one, round, found) for (one, found), round in zip(pairs, drafted.rounds, strict=True)]

    def _commit_one(self, one: ScheduledSequence, round: DraftRound, verified: Verification | None) -> str:
        sequence = one.sequence
        again = sequence.table is not None and (one.num_tokens > 1 or verified is None)  # known tokens, once more
        prefill = not sequence.generated or again
        kind = "verify" if round.num_draft_tokens else "prefill" if prefill else "decode"
        if verified is None:  # a chunk of known tokens
            sequence.keep(sequence.computed + one.num_tokens)
        elif not verified.finite:
            self.failed.append((sequence, LabError(NOT_FINITE)))
        else:
            cached_tokens = sequence.report.cached_tokens
            if not sequence.generated:
                sequence.recorder.emit(Prefilled, tokens=sequence.prompt.length, cached_tokens=cached_tokens)
            try:
                commit(sequence, verified, self._token_text)
            except Exception as error:  # this sequence's alone: the others go on
                log.exception("the tokens of a sequence could not be reported")
                self.scheduler.remove(sequence)
                sequence.finish("error", explain(error))
                return kind
            sequence.keep(len(sequence.tokens) - 1)  # the newest token is computed by the next step
            if not verified.draft_finite:
                disable_drafter(sequence, "Its output is not finite.")
            elif (drafter := self._drafters.of(sequence)) and kind != "prefill" and not sequence.reason:
                self._stats.adapt(sequence, verified, drafter.times, self.scheduler.running)
        if sequence.table and sequence.shares_prefixes:
            # A block that drafting requests can find must hold their drafter's keys and values as well.
            own = sequence.config.speculative in OWN_KEYS
            length = min(sequence.computed, sequence.draft.num_computed) if own else sequence.computed
            priority = sequence.config.cache_priority
            sequence.table.cache_full_blocks(sequence.tokens, length, sequence.prefix_root, priority)
            self.target.keep_state(sequence.table)
        return kind
