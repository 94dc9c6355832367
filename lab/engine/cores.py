"""The cores of an engine: one for each cache setting in use, within one memory budget."""

import logging
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from dataclasses import replace

from transformers import PreTrainedTokenizerBase

from lab.backends.interface import Backends
from lab.config import EngineConfig
from lab.engine.core import EngineCore
from lab.engine.failures import explain
from lab.engine.memory_budget import Budget
from lab.engine.processor import Processor
from lab.engine.sequence import OWN_KEYS, Sequence
from lab.engine.step_limits import StepLimits
from lab.errors import LabError
from lab.kv_cache.kv_cache import CacheConfig
from lab.kv_cache.prefix_cache import Prefix
from lab.trace.events import CacheDropped, FellBack
from lab.util.device_memory import is_out_of_memory, release_cached_memory
from lab.util.messages import counted

log = logging.getLogger(__name__)

BROKEN_OFF = "A step was broken off in the middle, as by a second Ctrl-C, and all requests under way ended with it."


class EngineCores:
    """Puts every sequence into the core that it asks for; cores with work take turns.

    A core is made when it is first asked for. An idle one is dropped when the next is made; if it still holds prefixes
    that can be found, or captured steps, only if its memory is needed. A sequence whose core has no room yet waits.

    Attributes:
        inbox: new sequences, which any thread may add.
        unplaced: sequences that wait for a core.
    """

    def __init__(
        self,
        backends: Backends,
        processor: Processor,
        budget: Budget,
        tokenizer: PreTrainedTokenizerBase,
        max_num_batched_tokens: int,
        async_scheduling: bool,
    ) -> None:
        self._backends, self._processor, self._budget, self._tokenizer = backends, processor, budget, tokenizer
        self._max_num_batched_tokens = max_num_batched_tokens
        self._async_scheduling = async_scheduling
        self._known_identity = backends.weights_identity()
        self._cores: OrderedDict[CacheConfig, EngineCore] = OrderedDict()  # the longest wait for a turn first
        self.inbox: deque[Sequence] = deque()
        self.unplaced: list[Sequence] = []

    def __iter__(self) -> Iterator[EngineCore]:
        return iter(list(self._cores.values()))

    @property
    def busy(self) -> bool:
        return bool(self.unplaced) or any(len(core.scheduler) for core in self)

    def bytes_in_use(self) -> int:
        return sum(self._budget.cache_bytes(setting) for setting in self._cores)

    # -- a step --------------------------------------------------------------------------------

    def step(self) -> bool:
        """One step of the core that has waited longest. False if there is nothing to do."""
        core = next((core for core in self if len(core.scheduler)), None)
        if core is None:
            return False
        self._cores.move_to_end(core.config)
        smaller = False
        try:
            core.step()
        except Exception as error:
            running = core.scheduler.running
            smaller = is_out_of_memory(error) and core.scheduler.can_shrink
            if smaller:
                log.warning("a step ran out of memory, with %d running; the next one is smaller", len(running))
            elif not isinstance(error, LabError):
                log.exception("a step failed")
            # Its traceback holds the tensors of the failed pass, in a cycle that may not be collected for long.
            error = error.with_traceback(None)
            # A sequence that has its last token is done; the others go on if a smaller step may succeed.
            stuck = [sequence for sequence in running or core.scheduler.waiting if sequence.reason or not smaller]
            core.failed += [(sequence, error) for sequence in stuck]
        failed, core.failed = dict(core.failed), []
        for sequence, error in failed.items():
            core.scheduler.remove(sequence)
            self._go_on_without(sequence, core.config, error)
        if smaller:
            core.scheduler.shrink()
            for sequence in core.scheduler.running:
                sequence.keep(sequence.computed)  # what was drafted for the failed step is drafted again
            release_cached_memory()  # cuBLAS and Triton allocate without torch, and find none that torch keeps
        core.settle()
        return True

    def _go_on_without(self, sequence: Sequence, setting: CacheConfig, error: Exception) -> None:
        """Move a sequence that failed in a core from quantised to plain storage. It ends if it had its last token or
        plain storage, or if memory ran out: plain storage takes more."""
        if sequence.reason:
            sequence.finish(sequence.reason)
        elif setting.kv_dtype == "auto" or is_out_of_memory(error):
            sequence.finish("error", explain(error))
        else:
            sequence.leave_core()
            sequence.recorder.emit(FellBack, part="kv_format", reason=explain(error))
            sequence.config = replace(sequence.config, kv_dtype="auto")
            if not self._budget.allows(sequence.config):
                sequence.config = replace(sequence.config, num_blocks=None)
            sequence.report.num_blocks = self._budget.cache_config(sequence.config).num_blocks  # plain ones are larger
            self.unplaced.append(sequence)

    # -- coming and going ----------------------------------------------------------------------

    def take_new(self) -> None:
        """Put new sequences into cores, and take out those that were cancelled."""
        if self.inbox:
            self._drop_if_stale()
        while self.inbox:
            self.unplaced.append(self.inbox.popleft())
        self._reap()
        self._place_waiting()

    def _reap(self) -> None:
        for core in self:
            for sequence in (*core.scheduler.running, *core.scheduler.waiting):
                if sequence.prompt.cancelled.is_set():
                    core.scheduler.remove(sequence)
                    sequence.finish("cancelled")
            core.settle()
        for sequence in self.unplaced:
            if sequence.prompt.cancelled.is_set():
                self._begin(sequence)
                sequence.finish("cancelled")
        self.unplaced = [sequence for sequence in self.unplaced if not sequence.finished]

    def _place_waiting(self) -> None:
        """Put waiting sequences into their cores, as far as there is memory. After one that there is no memory for, all
        others wait as well: otherwise the cores that hold the memory might never become idle."""
        left, short = [], False
        for sequence in self.unplaced:
            if sequence.ready:
                self._begin(sequence)
                short = short or not self._place(sequence)
            if not sequence.ready or short:
                left.append(sequence)
        self.unplaced = left

    def _begin(self, sequence: Sequence) -> None:
        """Begin a sequence's record if that is still to do: a synthetic run's clock does not count its preparation."""
        if not sequence.prompt.hidden and not sequence.recorder.began:
            self._processor.announce(sequence)

    def _place(self, sequence: Sequence) -> bool:
        """Put a sequence into its core. False if there is no memory for that core yet."""
        try:
            # Checked again, since it may have fallen back to a format that needs more memory.
            self._budget.refuse_misfit(sequence.prompt.length, sequence.end, sequence.config)
            core = self.core_for(sequence.config, sequence.end)
            if core is None:
                return False
            if (blocks := core.config.num_blocks) < sequence.report.num_blocks:
                asked = counted(sequence.report.num_blocks, "cache block")
                reason = f"The device has no room for {asked}: the pool has {blocks:,}."
                sequence.recorder.emit(FellBack, part="full_pool", reason=reason)
                sequence.report.num_blocks = blocks
            if sequence.prefix_root is None:
                # The blocks that requests with a draft model or a head find hold its keys and values too.
                own = sequence.config.speculative
                sequence.prefix_root = Prefix.root((self._known_identity, own if own in OWN_KEYS else None))
            if not len(core.scheduler) or core.scheduler.limits.retry_is_due:
                core.scheduler.limits.grow()
                core.target.try_again()
            core.add(sequence)
        except Exception as error:
            log.warning("a sequence could not be placed", exc_info=True)
            sequence.finish("error", explain(error))
        return True

    def core_for(self, config: EngineConfig, end: int = 1) -> EngineCore | None:
        """The core for requests with this ``config``, made if there is none; None while there is no memory for it.
        ``end``: the tokens that it has room for at least."""
        setting = self._budget.cache_config(config)
        if setting in self._cores:
            return self._cores[setting]
        if not self._make_room(setting):
            return None
        fewest = self._budget.blocks_for(end, setting.block_size, setting.paged)
        core = self._made(setting, least=config.num_blocks or fewest)
        self._cores[core.config] = core
        return core

    def _made(self, setting: CacheConfig, least: int) -> EngineCore:
        """A new core. If the device has less memory than the budget says, idle cores are dropped for it; if no other
        core has memory, it then gets fewer blocks, but no fewer than ``least``. A larger one leaves enough for a step.
        """
        core, fitting = None, setting
        while core is None:
            try:
                core = EngineCore(
                    fitting,
                    *self._backends.create(fitting),
                    self._tokenizer,
                    self._budget,
                    StepLimits(self._budget.max_num_seqs, self._max_num_batched_tokens),
                    async_scheduling=self._async_scheduling,
                )
                if fitting.num_blocks > least and not self._budget.leaves_enough:
                    core = None
                    raise MemoryError("The cache leaves no memory for a step.")
            except Exception as error:  # while there is an error, it keeps the attempt's memory alive
                if not is_out_of_memory(error):
                    raise
                if idle := self._idle():
                    self._drop(idle)
                elif fitting.num_blocks <= least or self.bytes_in_use():
                    raise
                else:
                    fitting = fitting._replace(num_blocks=max(least, fitting.num_blocks * 3 // 4))
        if fitting is not setting:
            self._budget.lower(self._budget.cache_bytes(fitting))  # no more than this is counted on from now on
        return core

    def _idle(self) -> list[EngineCore]:
        return [core for core in self if not len(core.scheduler)]

    def _drop(self, cores: Iterable[EngineCore]) -> None:
        for core in cores:
            del self._cores[core.config]
            core.target.close()

    def _make_room(self, setting: CacheConfig) -> bool:
        wanted = self._budget.cache_bytes(setting)
        for core in sorted(self._idle(), key=_is_worth_keeping):
            if not _is_worth_keeping(core) or self.bytes_in_use() + wanted > self._budget.limit:
                self._drop([core])
        return self.bytes_in_use() + wanted <= self._budget.limit or not self._cores

    def abort_all(self) -> None:
        """Drop the cores with all that they hold, and end all sequences, after a step was broken off."""
        lost = [one for core in self for one in (*core.scheduler.running, *core.scheduler.waiting)] + self.unplaced
        self.unplaced = []
        self._drop(self)
        for sequence in lost:
            sequence.table = None  # dropped with its core: one of its blocks may be half freed
            self._begin(sequence)
            sequence.finish("error", BROKEN_OFF)

    def _drop_if_stale(self) -> None:
        """If the weights have changed, get them ready, drop all keys and values, which are worthless, and compute
        everything again. That is reported to all that had some, and to those to come that might have found some."""
        if self._backends.weights_identity() == self._known_identity:
            return
        self._backends.prepare()  # it may move them
        self._known_identity = self._backends.weights_identity()
        cores = list(self)
        held = [sequence for core in cores for sequence in (*core.scheduler.running, *core.scheduler.waiting)]
        for sequence in held:
            sequence.leave_core()
            sequence.prefix_root = None
            self.unplaced.append(sequence)
        if any(core.cache and core.cache.blocks.occupancy().cached for core in cores):
            held += [sequence for sequence in self.inbox if sequence.shares_prefixes and sequence.recorder.began]
        self._drop(cores)
        for sequence in held:
            sequence.recorder.emit(CacheDropped, reason="The weights, their dtype or an adapter have changed.")


def _is_worth_keeping(core: EngineCore) -> bool:
    """True if it holds prefixes that can still be found, or captured steps."""
    return core.cache is not None and (core.cache.blocks.occupancy().cached > 0 or core.target.num_captured > 0)
