"""The pools of an engine: one for each setting in use, within one memory budget."""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from dataclasses import replace

from transformers import PreTrainedTokenizerBase

from lab.backends.choose import Backends
from lab.config import EngineConfig
from lab.engine.core import Pool
from lab.engine.error_messages import explain
from lab.engine.memory_budget import Budget
from lab.engine.processor import Intake
from lab.engine.sequence import Sequence
from lab.errors import LabError
from lab.kv_cache.kv_cache import PoolSetting
from lab.kv_cache.prefix_cache import Prefix
from lab.trace.events import CacheDropped, FellBack
from lab.util.device_memory import is_out_of_memory, release_cached_memory
from lab.util.messages import counted

log = logging.getLogger(__name__)

BROKEN_OFF = "A step was broken off in the middle, as by a second Ctrl-C, and all requests under way ended with it."


class Pools:
    """Puts every sequence into the pool that it asks for; pools with work take turns.

    A pool is made when it is first asked for. An idle one is dropped when the next is made; if it still holds prefixes
    that can be found, or captured steps, only if its memory is needed. A sequence whose pool has no room yet waits.

    Args:
        max_num_seqs: most sequences in one step of a pool.
        max_num_batched_tokens: most tokens in one step.
        async_scheduling: see ``Engine``.

    Attributes:
        inbox: new sequences, which any thread may add.
        unplaced: sequences that wait for a pool.
    """

    def __init__(
        self,
        backends: Backends,
        intake: Intake,
        budget: Budget,
        tokenizer: PreTrainedTokenizerBase,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        async_scheduling: bool = True,
    ) -> None:
        self._backends = backends
        self._intake = intake
        self._budget = budget
        self._tokenizer = tokenizer
        self._max_num_seqs = max_num_seqs
        self._max_num_batched_tokens = max_num_batched_tokens
        self._async_scheduling = async_scheduling
        self._known_identity = backends.weights_identity()
        self._pools: OrderedDict[PoolSetting, Pool] = OrderedDict()  # the longest wait for a turn first
        self.inbox: deque[Sequence] = deque()
        self.unplaced: list[Sequence] = []

    def __iter__(self) -> Iterator[Pool]:
        return iter(list(self._pools.values()))

    @property
    def busy(self) -> bool:
        """Whether any sequence is under way."""
        return bool(self.unplaced) or any(len(pool.scheduler) for pool in self)

    def bytes_in_use(self) -> int:
        return sum(self._budget.pool_bytes(setting) for setting in self._pools)

    # -- a step --------------------------------------------------------------------------------

    def step(self) -> bool:
        """One step of the pool that has waited longest. False if there is nothing to do."""
        pool = next((pool for pool in self if len(pool.scheduler)), None)
        if pool is None:
            return False
        self._pools.move_to_end(pool.setting)
        smaller = False
        try:
            pool.step()
        except Exception as error:
            running = pool.scheduler.running
            smaller = is_out_of_memory(error) and pool.scheduler.can_shrink
            if smaller:
                log.warning("a step ran out of memory, with %d running; the next one is smaller", len(running))
            elif not isinstance(error, LabError):
                log.exception("a step failed")
            # Its traceback holds the tensors of the failed pass, in a cycle that may not be collected for long.
            error = error.with_traceback(None)
            # A sequence that has its last token is done; the others go on if a smaller step may succeed.
            stuck = [sequence for sequence in running or pool.scheduler.waiting if sequence.reason or not smaller]
            pool.failed += [(sequence, error) for sequence in stuck]
        failed, pool.failed = dict(pool.failed), []
        for sequence, error in failed.items():
            pool.scheduler.remove(sequence)
            self._go_on_without(sequence, pool.setting, error)
        if smaller:
            pool.shrink()
            release_cached_memory()  # cuBLAS and Triton allocate without torch, and find none that torch keeps
        pool.settle()
        return True

    def _go_on_without(self, sequence: Sequence, setting: PoolSetting, error: Exception) -> None:
        """Move a sequence that failed in a pool from quantised to plain storage; from plain storage it ends.

        It also ends if memory ran out: plain storage takes more.
        """
        if sequence.reason:  # it had its last token
            sequence.finish(sequence.reason)
            return
        if setting.kv_dtype == "auto" or is_out_of_memory(error):
            sequence.finish("error", explain(error))
            return
        sequence.leave_pool()
        sequence.recorder.emit(FellBack, part="kv_format", reason=explain(error))
        sequence.config = replace(sequence.config, kv_dtype="auto")
        if not self._budget.allows(sequence.config):
            sequence.config = replace(sequence.config, num_blocks=None)
        sequence.told_blocks = self._budget.setting(sequence.config).num_blocks  # fewer: plain ones are larger
        self.unplaced.append(sequence)

    # -- coming and going ----------------------------------------------------------------------

    def take_in(self) -> None:
        """Put new sequences into pools, and take out those that were cancelled."""
        if self.inbox:
            self._drop_if_stale()
        while self.inbox:
            self.unplaced.append(self.inbox.popleft())
        self._reap()
        self._place_waiting()

    def _reap(self) -> None:
        """End what has been cancelled."""
        for pool in self:
            pool.reap()
        for sequence in self.unplaced:
            if sequence.cancelled.is_set():
                self._begin(sequence)
                sequence.finish("cancelled")
        self.unplaced = [sequence for sequence in self.unplaced if not sequence.finished]

    def _place_waiting(self) -> None:
        """Put waiting sequences into their pools, as far as there is memory. After one that there is no memory for, all
        others wait as well: otherwise the pools that hold the memory might never become idle."""
        left, short = [], False
        for sequence in self.unplaced:
            ready = sequence.ready
            if ready:
                self._begin(sequence)
            if ready and not short:
                short = not self._place(sequence)
            if not ready or short:
                left.append(sequence)
        self.unplaced = left

    def _begin(self, sequence: Sequence) -> None:
        """Begin a sequence's record if that is still to do: a synthetic run's clock does not count its preparation."""
        if not sequence.hidden and not sequence.recorder.began:
            self._intake.announce(sequence)

    def _place(self, sequence: Sequence) -> bool:
        """Put a sequence into its pool. False if there is no memory for that pool yet."""
        try:
            # Checked again, since it may have fallen back to a format that needs more memory.
            self._budget.refuse_misfit(sequence.prompt_length, sequence.end, sequence.config)
            pool = self.pool_for(sequence.config, sequence.end)
            if pool is None:
                return False
            if (blocks := pool.setting.num_blocks) < sequence.told_blocks:
                asked = counted(sequence.told_blocks, "cache block")
                reason = f"The device has no room for {asked}: the pool has {blocks:,}."
                sequence.recorder.emit(FellBack, part="full_pool", reason=reason)
                sequence.told_blocks = blocks
            if sequence.root is None:
                sequence.root = self._root(sequence)
            pool.add(sequence)
        except Exception as error:
            log.warning("a sequence could not be placed", exc_info=True)
            sequence.finish("error", explain(error))
        return True

    def pool_for(self, config: EngineConfig, end: int = 1) -> Pool | None:
        """The pool for requests with this ``config``, made if there is none; None while there is no memory for it.
        ``end``: the tokens that it has room for at least."""
        setting = self._budget.setting(config)
        if setting in self._pools:
            return self._pools[setting]
        if not self._make_room(setting):
            return None
        pool = self._made(setting, least=config.num_blocks or -(-end // setting.block_size))
        self._pools[pool.setting] = pool
        return pool

    def _made(self, setting: PoolSetting, least: int) -> Pool:
        """A new pool. If the device has less memory than the budget says, idle pools are dropped for it; if no other
        pool has memory, it then gets fewer blocks, but no fewer than ``least``. A larger one leaves enough for a step.
        """
        pool, fitting = None, setting
        while pool is None:
            try:
                pool = self._new(fitting)
                if fitting.num_blocks > least and not self._budget.leaves_enough:
                    pool = None
                    raise MemoryError("The pool leaves no memory for a step.")
            except Exception as error:  # while there is an error, it keeps the attempt's memory alive
                if not is_out_of_memory(error):
                    raise
                if not self._drop_idle():
                    if fitting.num_blocks <= least or self.bytes_in_use():
                        raise
                    fitting = fitting._replace(num_blocks=max(least, fitting.num_blocks * 3 // 4))
        if fitting is not setting:
            self._budget.lower(self._budget.pool_bytes(fitting))  # no more than this is counted on from now on
        return pool

    def _new(self, setting: PoolSetting) -> Pool:
        return Pool(
            setting,
            *self._backends.models(setting),
            self._tokenizer,
            self._budget,
            max_num_seqs=self._max_num_seqs,
            max_num_batched_tokens=self._max_num_batched_tokens,
            kernels=self._backends.by_triton(setting),
            cuda_graphs=self._backends.captures(setting),
            async_scheduling=self._async_scheduling,
        )

    def _drop_idle(self) -> bool:
        """Drop the idle pools. False if there are none."""
        idle = [pool for pool in self if not len(pool.scheduler)]
        self._drop(idle)
        return bool(idle)

    def _drop(self, pools: Iterable[Pool]) -> None:
        """Drop these pools, with all that they hold."""
        for pool in pools:
            del self._pools[pool.setting]
            pool.close()

    def _root(self, sequence: Sequence) -> Prefix:
        """Where the sequence's prefixes begin. Requests with a draft model have a root of their own: the blocks that
        they find hold the draft's keys and values too."""
        return Prefix.root((self._known_identity, sequence.config.speculative == "draft"))

    def _make_room(self, setting: PoolSetting) -> bool:
        wanted = self._budget.pool_bytes(setting)
        idle = [pool for pool in self if not len(pool.scheduler)]
        for pool in sorted(idle, key=lambda pool: pool.worth_keeping):
            if not pool.worth_keeping or self.bytes_in_use() + wanted > self._budget.limit:
                self._drop([pool])
        return self.bytes_in_use() + wanted <= self._budget.limit or not self._pools

    def forget(self) -> None:
        """After something was broken off in the middle: drop the pools with all that they hold; all sequences end."""
        lost = [one for pool in self for one in (*pool.scheduler.running, *pool.scheduler.waiting)] + self.unplaced
        self.unplaced = []
        self._drop(self)
        for sequence in lost:
            sequence.table = None  # dropped with its pool: one of its blocks may be half given back
            self._begin(sequence)
            sequence.finish("error", BROKEN_OFF)

    def _drop_if_stale(self) -> None:
        """If the weights have changed, get them ready, drop all keys and values, which are worthless, and compute
        everything again. All that had some are told, and of those that come who might have found some."""
        if self._backends.weights_identity() == self._known_identity:
            return
        self._backends.prepare()  # it may move them
        self._known_identity = self._backends.weights_identity()
        pools = list(self)
        held = [sequence for pool in pools for sequence in (*pool.scheduler.running, *pool.scheduler.waiting)]
        for sequence in held:
            sequence.leave_pool()
            sequence.root = None
            self.unplaced.append(sequence)
        if any(pool.cache and pool.cache.blocks.occupancy().cached for pool in pools):
            held += [sequence for sequence in self.inbox if sequence.shares_prefixes and sequence.recorder.began]
        self._drop(pools)
        for sequence in held:
            sequence.recorder.emit(CacheDropped, reason="The weights, their dtype or an adapter have changed.")
