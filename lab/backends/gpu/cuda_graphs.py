"""CUDA graphs: a forward pass's kernels launched all together instead of one by one.

A small step runs hundreds of short kernels on a GPU, and launching each from Python takes longer than running
it. A graph is a recording of them that is launched at once (NVIDIA, CUDA C++ Programming Guide, "CUDA Graphs";
for decoding see gpt-fast and vLLM). It replays the same launches on the same addresses, so inputs and
output stay where they are, and every step must have one of a few shapes: it is padded to its bucket.

Steps with few tokens per sequence are captured: decoding, drafting, verifying. A prompt gives every launch
enough work, and may have any length.
"""

import gc
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

import torch

from lab.backends.gpu.batch_inputs import Layout
from lab.backends.gpu.paged_attention import SHORTEST_CONTEXT
from lab.kv_cache.storage import KVStorage
from lab.models.language_model import LanguageModel
from lab.util.device_memory import CAPTURING, is_out_of_memory
from lab.util.messages import error_summary

log = logging.getLogger(__name__)

NEW_TOKENS = (*range(1, 10), 13, 16, 17, 25, 33)
"""Most new tokens of a sequence in a captured step: one and a window of up to 32."""
MOST_ROWS = 256
"""Most rows of a captured step. With more the GPU is busy for longer than the host needs to launch."""


class Bucket(NamedTuple):
    """The shape of a captured step: ``sequences``, each of at most ``new`` new tokens and ``context`` in all."""

    sequences: int
    new: int
    context: int

    def __str__(self) -> str:
        return f"{self.sequences} x {self.new} tokens, context {self.context:,}"

    @property
    def rows(self) -> int:
        return self.sequences * self.new

    def layout(self, block_size: int) -> Layout:
        """Layout of such a step's index tensors."""
        return Layout(self.rows, self.rows, self.sequences, -(-self.context // block_size))

    @classmethod
    def of(cls, sequences: int, longest_new: int, longest: int) -> "Bucket | None":
        """The smallest bucket that holds a step; None if none does.

        Sequences and contexts come in powers of two. The context matters because the attention kernel's launch depends
        on how long a sequence can be.
        """
        new = next((tokens for tokens in NEW_TOKENS if tokens >= longest_new), None)
        if new is None:
            return None
        context = max(SHORTEST_CONTEXT, 1 << (longest - 1).bit_length())
        bucket = cls(1 << (sequences - 1).bit_length(), new, context)
        return bucket if bucket.rows <= MOST_ROWS else None


@dataclass(frozen=True, slots=True)
class Captured:
    """A captured step, all on the model's device. ``rows`` are its bucket's.

    Attributes:
        token_ids: [rows] int64, to be overwritten.
        numbers: [sum of its layout's ``sizes``] int32, the other inputs (``Layout.pack``), to be overwritten.
        replay: runs it.
        logits: [rows, vocabulary] float32: what it gave, until another graph of the same cache is replayed.
    """

    token_ids: torch.Tensor
    numbers: torch.Tensor
    replay: Callable[[], None]
    logits: torch.Tensor


class Graphs:
    """The captured steps of the models that share a cache. They contain the addresses of its slots and of the models.

    A bucket is captured on first use. All graphs of a cache share one pool of memory, and the memory of their logits,
    since no two run at the same time. A bucket that there is no memory to capture is left out: its steps are launched
    kernel by kernel. If one cannot be captured for another reason, or not replayed, all are given up.

    Attributes:
        on: whether graphs are in use.
        failure: why they were given up, or one of them was.
        capturing: what is being captured at this moment, to tell those who wait for it. The first time, kernels are
            compiled too, which takes seconds.
    """

    def __init__(self) -> None:
        self.on = True
        self.failure: str | None = None
        self.capturing: str | None = None
        self._captured: dict[tuple[LanguageModel, Bucket], Captured] = {}
        self._too_large: set[tuple[LanguageModel, Bucket]] = set()
        self._for_memory = False  # whether ``failure`` is for want of memory
        self._logits = torch.empty(0)
        self._stream: CaptureStream | None = None

    @property
    def count(self) -> int:
        """Number of captured steps."""
        return len(self._captured)

    def give_up(self, reason: str) -> None:
        """Use no graphs any more, and destroy those that there are."""
        self.on, self.failure, self._for_memory = False, reason, False
        self.drop()

    def make_room(self) -> None:
        """Use no graphs until ``try_again``: others need their memory."""
        self.give_up("Memory ran short, and theirs was needed.")
        self._for_memory = True

    def try_again(self) -> None:
        """Capture what there was no memory for: there may be some now."""
        if self._for_memory:
            self._too_large.clear()
            self.on, self.failure, self._for_memory = True, None, False

    def drop(self) -> None:
        """Destroy all graphs, and free their memory, once no other thread captures."""
        with CAPTURING:
            self._captured.clear()
            self._logits = torch.empty(0)
            self._stream = None

    def has(self, model: LanguageModel, bucket: Bucket | None) -> bool:
        return (model, bucket) in self._captured

    def capture(self, model: LanguageModel, bucket: Bucket, block_size: int, storage: KVStorage) -> Captured | None:
        """The graph of a bucket, captured now if need be. None: there was no memory for it, or capturing failed in
        another way and graphs are given up."""
        if (model, bucket) in self._too_large:
            return None
        try:
            if not self.has(model, bucket):
                self.capturing = f"{model.name}, {bucket}"
                self._captured[model, bucket] = self._capture(model, bucket, block_size, storage)
            return self._captured[model, bucket]
        except Exception as error:
            # Ending a capture in which memory ran out may fail in turn.
            if any(map(is_out_of_memory, filter(None, (error, error.__context__)))):
                self._leave_out(model, bucket)
            else:
                self._fail(error)
            return None
        finally:
            self.capturing = None

    def forward(
        self,
        model: LanguageModel,
        token_ids: torch.Tensor,
        packed: torch.Tensor,
        kept: int,
        bucket: Bucket,
        block_size: int,
        storage: KVStorage,
    ) -> torch.Tensor | None:
        """Compute a step by the graph of its bucket.

        Args:
            token_ids: [N] int64 on the device.
            packed: the step's index tensors in the bucket's layout, joined, on the host; for a GPU in pinned memory,
                which it copies from by itself.
            kept: K, the rows whose logits are wanted.

        Returns:
            [K, vocabulary] float32 logits, which no later replay overwrites; None: there is no graph of this bucket, or
            it failed and graphs are given up.
        """
        captured = self.capture(model, bucket, block_size, storage)
        if captured is None:
            return None
        try:
            captured.token_ids[: len(token_ids)].copy_(token_ids)
            captured.numbers.copy_(packed, non_blocking=True)
            captured.replay()
            return captured.logits[:kept].clone()
        except Exception as error:
            self._fail(error)
            return None

    def _fail(self, error: Exception) -> None:
        log.warning("a CUDA graph failed", exc_info=error)
        self.give_up(error_summary(error))

    def _leave_out(self, model: LanguageModel, bucket: Bucket) -> None:
        log.warning("no memory to capture %s, %s", model.name, bucket, exc_info=True)
        self._too_large.add((model, bucket))
        self.failure = f"There was no memory to capture {model.name}, {bucket}. Only steps of that shape are affected."
        self._for_memory = True
        if not self._captured:
            self._stream = None  # its pool of memory, without a graph, could not be used again

    def _capture(self, model: LanguageModel, bucket: Bucket, block_size: int, storage: KVStorage) -> Captured:
        """Record a step of nothing but padding. (What is kept of the recording does not refer to this object.)"""
        layout, nothing = bucket.layout(block_size), ((), (), (), ())
        numbers = layout.pack(*nothing, block_size, model.device).to(model.device)
        token_ids = torch.zeros(bucket.rows, dtype=torch.long, device=model.device)
        packed = layout.split(numbers)
        plan = packed.plan(block_size, bucket.new, bucket.context, storage)
        # Logits' memory grows with what is captured: one sequence needs a row, and the largest step 125 MiB for a
        # vocabulary of 128,256. Graphs that are there already go on writing to where they did, so it at least doubles.
        size, memory = bucket.rows * model.vocabulary, self._logits
        if len(memory) < size:
            memory = torch.empty(max(size, 2 * len(memory)), dtype=torch.float32, device=model.device)
        out = memory[:size].view(bucket.rows, model.vocabulary)
        if self._stream is None:
            self._stream = CaptureStream(model.device)
        replay, logits = self._stream.record(lambda: model.forward(token_ids, packed.positions, plan, packed.kept, out))
        self._logits = memory
        return Captured(token_ids, numbers, replay, logits)


class CaptureStream:
    """The stream that graphs are captured in, and the memory that they share.

    A pool of memory whose graphs are all gone cannot be reused (pytorch raises), so both are dropped together.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        with torch.cuda.device(device):
            self._stream = torch.cuda.Stream()
            self._pool = torch.cuda.graph_pool_handle()

    def record(self, run: Callable[[], torch.Tensor]) -> tuple[Callable[[], None], torch.Tensor]:
        """Capture ``run``. Returns a function that replays it in the then current stream, and the tensor it returned.

        ``run`` is called once before, in the same stream, so that kernels are compiled.
        """
        # The inner context restores the current stream even if a capture fails while it is being ended.
        with CAPTURING, torch.cuda.device(self._device), torch.cuda.stream(torch.cuda.current_stream()):
            self._stream.wait_stream(torch.cuda.current_stream())
            try:
                with torch.cuda.stream(self._stream):
                    run()
            finally:  # even if it failed: what it launched reads what is freed then
                torch.cuda.current_stream().wait_stream(self._stream)
            graph, collects = torch.cuda.CUDAGraph(), gc.isenabled()
            _drop_workspaces()
            # Garbage may hold another engine's graphs, which cannot be destroyed now (pytorch/pytorch#161037).
            gc.disable()
            try:
                # Other threads may allocate meanwhile.
                with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
                    output = run()
            except Exception:
                self._recover()
                raise
            finally:
                if collects:
                    gc.enable()
                _drop_workspaces()

        def replay() -> None:
            with torch.cuda.device(self._device):
                graph.replay()

        return replay, output

    def _recover(self) -> None:
        """Bring torch out of a capture that failed. Each call here raises if torch got out of it by itself.

        torch 2.11 leaves its allocator in the capture, which then frees no memory (pytorch/pytorch#180395), and its
        random number generator, whose every later draw then fails: a capture that succeeds takes that out.
        """
        with suppress(AttributeError, RuntimeError):
            torch._C._cuda_endAllocateToPool(self._device.index or 0, self._pool)
        nothing, how = torch.cuda.CUDAGraph(), {"stream": self._stream, "capture_error_mode": "thread_local"}
        with suppress(RuntimeError), torch.cuda.graph(nothing, **how):
            torch.zeros(1, device=self._device)


def _drop_workspaces() -> None:
    """Free cuBLAS's workspaces. A graph contains their addresses: a workspace allocated within the capture is in the
    graph's own memory, where nobody else can free it. (torch's own graph trees, torch/_inductor/cudagraph_trees.py,
    drop workspaces too between captures, and would free one that was allocated before.)
    """
    with suppress(AttributeError):  # torch without CUDA
        torch._C._cuda_clearCublasWorkspaces()


def can_be_captured(model: LanguageModel) -> bool:
    """Return whether all of a model is on one GPU, and a step of it never waits for the GPU.

    What another device computes would be missing from a replay. One with sliding windows has block tables by group,
    which are not captured. A capture cannot wait for a result, and bitsandbytes'
    INT8 looks for outliers in every product, "dynamic" rotary frequencies for the longest text.
    """
    devices = {weight.device for weight in model.model.parameters()}
    looks = getattr(model.model, "is_loaded_in_8bit", False) or any(
        "dynamic" in str(getattr(module, "rope_type", ""))  # a word, or one for each type of layer
        for module in model.model.modules()
    )
    return len(devices) == 1 and devices.pop().type == "cuda" and not looks and not any(model.windows)
