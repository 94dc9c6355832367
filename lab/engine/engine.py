"""The engine: requests come in, cores take turns, events go out.

``stream`` and ``submit`` hand a request over; the thread that waits for an event steps the engine, for all requests at
once. A step belongs to one core and is shared by all of that core's sequences.
"""

import threading
from collections.abc import Callable, Collection, Iterator
from collections.abc import Sequence as Items
from dataclasses import replace

import torch
from transformers import PreTrainedTokenizerBase

from lab.backends.interface import Backend, Backends
from lab.config import SEEDS, EngineConfig, SamplingParams, require_whole
from lab.engine.cores import EngineCores
from lab.engine.memory_budget import Budget
from lab.engine.processor import Processor
from lab.engine.sequence import Sequence
from lab.engine.step_limits import LARGEST_LIMIT, batched_tokens, refuse_limits
from lab.engine.step_lock import StepLock
from lab.kv_cache.block_pool import Occupancy
from lab.models.chat_template import Chat, ChatTemplate
from lab.models.language_model import LanguageModel
from lab.trace.events import Event
from lab.trace.recorder import EventListener
from lab.trace.roofline import Limits
from lab.trace.run import Run

Prompted = str | Items[int] | Chat
"""What a request goes on from: text, token ids, or messages."""


class Request:
    """A request in progress. Iterate it for its events; if several threads do, each event goes to one of them."""

    def __init__(self, engine: "Engine", sequence: Sequence) -> None:
        self._engine = engine
        self._sequence = sequence

    def __iter__(self) -> Iterator[Event]:
        """The events as they come. Closing this iterator before the end cancels the request, and so does Ctrl-C while
        it waits. A request that is not iterated goes on with the others.

        Waiting for an event is what steps the engine, for all of its requests at once.
        """
        recorder = self._sequence.recorder
        try:
            while True:
                yield from recorder.drain()
                if self._sequence.finished and not recorder.pending:
                    return
                self._engine.advance(self._sequence)
        finally:
            if not self._sequence.finished:
                self._engine.abandon(self._sequence)

    def result(self) -> Run:
        """Wait for the end and return the run, for a request whose events were not read yet."""
        return Run(self)

    def cancel(self) -> None:
        """End the request before its next step: its blocks are freed, and a ``Finished`` event follows."""
        self._sequence.prompt.cancelled.set()

    @property
    def finished(self) -> bool:
        return self._sequence.finished


class Engine:
    """A target model, perhaps a draft, and the caches they share.

    Any method may be called from any thread. ``lab.load.load_engine`` makes an engine from names,
    ``lab.load.new_engine`` from models.

    Args:
        backends: the models, and what computes them.
        max_num_seqs: most sequences in one step.
        max_num_batched_tokens: most tokens in one step, draft tokens included; longer prompts are read in chunks.
            Without a cache a step computes whole texts, and a single one may take more. None: 8,192 on a GPU, 2,048 if
            it has less than 40 GB; on a CPU 512, or fewer if the target has more than 39 million weights in its layers
            (``CPU_STEP_FLOPS``). A core in which a chunk of a prompt ran out of memory goes on with fewer.
        kv_bytes: memory for all caches together; a cache gets one block even if that is more. None: 90% of a GPU's free
            memory, 25% of a CPU's. Less once a cache as large as that allows has found no room (``FellBack``).
        async_scheduling: with CUDA graphs, launch the next step of plain decoding before this one's token is read
            (``lab.engine.async_scheduling``). False: afterwards, for comparison.
        on_event: called with every event of every request's sequence, in order, by the thread that emits it; the engine
            waits for it. If it raises, the error is logged. Left out is what prepares a synthetic run.
        seq_ids: numbers requests as they arrive; engines with one listener share one. None: from 0.

    Attributes:
        target, draft: the models, as they are computed for a request with ``kernels="auto"``.
        kernels: what computes such a request: "triton", "c" or "reference" (torch).
        cuda_graphs: True if its steps can be captured.

    Raises:
        ConfigError: a limit that is no whole number from 1 to ``LARGEST_LIMIT``, or fewer tokens than one round of
            speculation needs.
    """

    def __init__(
        self,
        backends: Backends,
        tokenizer: PreTrainedTokenizerBase,
        *,
        max_num_seqs: int = 64,
        max_num_batched_tokens: int | None = None,
        kv_bytes: int | None = None,
        async_scheduling: bool = True,
        on_event: EventListener | None = None,
        seq_ids: Iterator[int] | None = None,
    ) -> None:
        refuse_limits(max_num_seqs, max_num_batched_tokens, kv_bytes)
        self._options = {"max_num_batched_tokens": max_num_batched_tokens, "kv_bytes": kv_bytes}
        self._options["async_scheduling"] = async_scheduling
        self._backends = backends
        self.target, self.draft, self.tokenizer = backends.target, backends.draft, tokenizer
        self.kernels, self.cuda_graphs = backends.kernels, backends.cuda_graphs
        self._budget = Budget(self.target, self.draft, kv_bytes, max_num_seqs)
        self._processor = Processor(backends, tokenizer, self._budget, on_event=on_event, seq_ids=seq_ids)
        most = max_num_batched_tokens or batched_tokens(self.target)
        self._cores = EngineCores(backends, self._processor, self._budget, tokenizer, most, async_scheduling)
        self._lock = StepLock(self._cores.take_new, self._cores.abort_all)

    def clone(
        self,
        *,
        max_num_seqs: int = 64,
        max_num_batched_tokens: int | None = None,
        on_event: EventListener | None = None,
    ) -> "Engine":
        """An engine with the same models, kernels and limits (but for those given), and with caches of its own: as much
        memory again."""
        options = self._options | ({"max_num_batched_tokens": max_num_batched_tokens} if max_num_batched_tokens else {})
        return Engine(self._backends, self.tokenizer, max_num_seqs=max_num_seqs, on_event=on_event, **options)

    # -- what the engine is ------------------------------------------------------------------

    @property
    def device(self) -> str:
        """The device where the target's tokens go in and come out, like "cpu" or "cuda:0"."""
        return str(self.target.device)

    @property
    def dtype(self) -> str:
        return self._processor.dtype_name(EngineConfig())

    @property
    def device_limits(self) -> Limits | None:
        """The device's peak rates for steps after a prompt, measured now if they are not known. None: they cannot be
        measured, or the target's work cannot be counted."""
        return self._processor.limits(EngineConfig())

    @property
    def computes_by_kernels(self) -> bool:
        return self._backends.uses_kernels(EngineConfig())

    @property
    def kernel_failure(self) -> str | None:
        """The reason why torch computes every step: kernels that could not be prepared. None: they could."""
        return self._backends.failure

    @property
    def context_length(self) -> int:
        """The most tokens that prompt and output may have together."""
        return self.target.context_length

    @property
    def chat_template(self) -> ChatTemplate | None:
        """The target's way to read messages (``Chat``). None: it has no template, and continues text."""
        return self._processor.chat_template

    def models(self, config: EngineConfig) -> tuple[LanguageModel, LanguageModel | None]:
        """Target and draft as they are computed for a request with this ``config``. Compiling them takes some seconds
        the first time. Raises ConfigError or UnsupportedModelError if they cannot be."""
        self._backends.refuse(config)
        return self._backends.models(config)

    def backends(self, config: EngineConfig) -> tuple[Backend, Backend | None]:
        """New back ends for target and draft, for a request with this ``config``. Errors: see ``models``."""
        self._backends.refuse(config)
        return self._backends.create(config)

    def default_num_blocks(self, config: EngineConfig) -> int:
        """Blocks of a pool whose num_blocks is None: 8 full contexts, or as many as fit. 0 without a cache."""
        return self._budget.cache_config(replace(config, num_blocks=None)).num_blocks

    def token_bytes(self, config: EngineConfig) -> int:
        """Bytes of cache per token: keys, values and scales of all layers, the draft's included if it drafts."""
        return self._budget.token_bytes(config)

    def occupancy(self) -> Occupancy:
        caches = [core.cache.blocks.occupancy() for core in self._cores if core.cache]
        return Occupancy(*(sum(state) for state in zip(*caches, strict=True))) if caches else Occupancy(0, 0, 0)

    def counts(self) -> tuple[int, int]:
        """The number of sequences that run, and of those that wait for room."""
        cores = list(self._cores)
        unplaced = sum(sequence.ready for sequence in (*self._cores.unplaced, *self._cores.inbox))
        waiting = sum(len(core.scheduler.waiting) for core in cores) + unplaced
        return sum(len(core.scheduler.running) for core in cores), waiting

    def place_in_queue(self, cancelled: threading.Event) -> int | None:
        """Sequences that get room before the one that ``cancelled`` ends; None: it has room, or is not here."""
        unplaced = [one for one in self._cores.unplaced if one.ready]  # with no core yet
        for queue in (unplaced, *([*core.scheduler.waiting] for core in self._cores)):
            for place, sequence in enumerate(queue):
                if sequence.prompt.cancelled is cancelled:
                    return place
        return None

    @property
    def wait_reason(self) -> str:
        """The reason why the present step takes long: a CUDA graph that is being captured. Empty: none."""
        capturing = next(filter(None, (core.target.capturing for core in self._cores)), None)
        return f"a CUDA graph, captured once for steps like this one: {capturing}" if capturing else ""

    # -- asking ------------------------------------------------------------------------------

    def generate(
        self, prompt: Prompted, config: EngineConfig | None = None, sampling: SamplingParams | None = None
    ) -> Run:
        """Decode ``prompt`` to the end. Errors: see ``submit``."""
        return Run(self.stream(prompt, config, sampling))

    def stream(
        self,
        prompt: Prompted,
        config: EngineConfig | None = None,
        sampling: SamplingParams | None = None,
        *,
        cancelled: threading.Event | None = None,
    ) -> Iterator[Event]:
        """Decode ``prompt``, yielding events as they come; the request begins when the first one is asked for.

        Setting ``cancelled`` ends it after the current step. Errors: see ``submit``.
        """
        begin = self.prepare(prompt, config, sampling, cancelled=cancelled)

        def events() -> Iterator[Event]:
            (request,) = begin()
            yield from request

        return events()

    def submit(
        self, prompt: Prompted, config: EngineConfig | None = None, sampling: SamplingParams | None = None
    ) -> Request:
        """Hand a request over; it joins the batch of those with the same cache settings.

        A later failure ends it with ``Finished(reason="error")``, or is worked around (``FellBack``).

        Raises:
            PromptError: the prompt is empty, not valid text, or can never fit.
            ConfigError: the configuration cannot be met here: no draft model, an early exit that skips no layer, more
                blocks than memory holds, or a way to compute that does not run.
        """
        return self.prepare(prompt, config, sampling)()[0]

    def prepare(
        self,
        prompt: Prompted,
        config: EngineConfig | None = None,
        sampling: SamplingParams | None = None,
        *,
        continuations: int = 1,
        cancelled: threading.Event | None = None,
    ) -> Callable[[], list[Request]]:
        """Check a request now; calling what is returned hands it over. Raises what ``submit`` raises.

        Args:
            continuations: number of requests for the prompt, with seeds from ``sampling.seed`` upwards. With paged
                blocks the prompt is computed once: the others share its blocks.
            cancelled: setting it ends them all after the current step.
        """
        require_whole("continuations", continuations, 1, LARGEST_LIMIT)
        first = self._processor.sequence(prompt, config, sampling, cancelled)
        seeds = [(first.sampling.seed + i) % SEEDS for i in range(1, continuations)]
        others = [
            self._processor.sequence(prompt, config, replace(first.sampling, seed=seed), cancelled) for seed in seeds
        ]
        for other in others if self.target.recurrent is None else ():  # a recurrent state is each one's own
            other.parent = first

        def begin() -> list[Request]:
            self._enqueue((first, *others))
            return [Request(self, sequence) for sequence in (first, *others)]

        return begin

    # -- stepping -----------------------------------------------------------------------------

    def warm_up(
        self,
        config: EngineConfig,
        *,
        sequences: int = 1,
        longest: int | None = None,
        report: Callable[[str], None] = lambda line: None,
    ) -> None:
        """Capture the CUDA graphs that requests like ``config`` need; otherwise each is captured on first use.

        Args:
            sequences: the most that run at once.
            longest: the most tokens in a sequence, prompt and output. None: the whole context.
            report: called with a line about each graph before it is captured.

        Raises:
            ConfigError: more blocks than memory holds.
            torch.OutOfMemoryError: no memory for the pool (or another error: ``is_out_of_memory``).
        """
        if not self._backends.captures(config):
            return
        with self._lock.hold():
            core = self._cores.core_for(config)
        if core is None or core.cache is None:
            return
        longest = longest or self.context_length
        for name, capture in core.target.captures(core.draft, core.cache, config, sequences, longest):
            report(f"CUDA graph: {name}")
            with self._lock.hold(), torch.inference_mode():
                capture()

    def advance(self, sequence: Sequence) -> None:
        """Return when ``sequence`` has an event or is finished, through another thread's step or one made here.

        Ctrl-C raises KeyboardInterrupt after that step. A second one breaks the step off, and ends all requests.
        """

        def served() -> bool:
            return sequence.recorder.pending or sequence.finished

        with self._lock.hold(served) as holds:
            if holds and not self._step() and not served():
                raise RuntimeError("no engine works on this request: it belongs to another engine, or was dropped")

    def abandon(self, sequence: Sequence) -> None:
        """End a sequence whose events are not read any more, at once if no other thread is stepping."""
        sequence.prompt.cancelled.set()
        self._lock.reap_abandoned()

    def step(self) -> bool:
        """One step of one core, with all of its sequences. False if there is nothing to do.

        Iterating a ``Request`` steps the engine by itself. Ctrl-C: see ``advance``.
        """
        with self._lock.hold():
            return self._step()

    def _step(self) -> bool:
        self._cores.take_new()
        return self._cores.step()

    def _enqueue(self, sequences: Collection[Sequence]) -> None:
        if self.target.device.type == "cuda" and not self._cores.busy:
            for device in {self.target.device, *self.target.layer_devices} - {None}:
                torch.cuda.reset_peak_memory_stats(device)
        oracles = [sequence.draft.oracle for sequence in sequences]
        for sequence, oracle in zip(sequences, oracles, strict=True):
            if not oracle:
                self._processor.announce(sequence)
        for sequence, oracle in zip(sequences, oracles, strict=True):  # now that none of them can fail
            self._cores.inbox.extend((oracle, sequence) if oracle else (sequence,))
