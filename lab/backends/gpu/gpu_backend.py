"""The back end of a GPU: Triton's kernels, launched one by one or all together as a CUDA graph."""

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import add

import torch

from lab.backends.gpu.batch_inputs import Layout
from lab.backends.gpu.cuda_graphs import Bucket, Graphs
from lab.backends.gpu.launching import launching
from lab.backends.gpu.paged_attention import SHORTEST_CONTEXT
from lab.backends.gpu.softmax import SHORTEST, softmax
from lab.backends.interface import Backend, LaunchedPass, NewTokens
from lab.backends.torch.sampler import sample
from lab.backends.torch.torch_backend import TorchBackend
from lab.config import EngineConfig, SamplingParams
from lab.kv_cache.attention_metadata import SdpaChoice
from lab.kv_cache.kv_cache import KVCache
from lab.kv_cache.storage import KVStorage
from lab.models.language_model import LanguageModel, Taps
from lab.trace.events import Part
from lab.util.device_copy import joined
from lab.util.device_memory import is_out_of_memory
from lab.util.step_timer import StepTimer

log = logging.getLogger(__name__)


class GpuBackend(TorchBackend):
    """A model whose steps Triton's kernels compute over a cache. Torch computes those that ask for one of its attention
    back ends.

    Args:
        graphs: the captured steps, those of the other model of the pair among them. None: nothing is captured.
    """

    def __init__(self, model: LanguageModel, graphs: Graphs | None) -> None:
        super().__init__(model)
        self._graphs = graphs

    def forward(
        self,
        batch: Sequence[NewTokens],
        storage: KVStorage | None,
        sdpa: SdpaChoice = "auto",
        taps: Taps | None = None,
    ) -> torch.Tensor:
        """As ``Backend.forward``. If a CUDA graph fails, or finds no memory, kernels are launched one by one. A pass
        that shows hidden states is torch's."""
        if storage is None or sdpa != "auto" or taps is not None:
            return super().forward(batch, storage, sdpa, taps)
        model, graphs = self.model, self._graphs
        counts = [len(new.token_ids) for new in batch]  # only once: asking a tensor costs more than using the number
        starts, keep = [new.start for new in batch], [new.keep for new in batch]
        longest_new, longest, kept = max(counts), max(map(add, starts, counts)), sum(keep)
        size = batch[0].table.pool.block_size
        step = counts, starts, keep, [new.table.blocks for new in batch]
        token_ids = joined([new.token_ids for new in batch])
        # A prompt's chunk (few of its logits are wanted) is not captured: a step of its shape hardly comes again.
        if graphs and graphs.on and all(count - wanted <= 1 for count, wanted in zip(counts, keep, strict=True)):
            bucket = Bucket.of(len(batch), longest_new, longest)
            if bucket:
                packed = bucket.layout(size).pack(*step, size, model.device)
                logits = graphs.forward(model, token_ids, packed, kept, bucket, size, storage)
                if logits is not None:
                    return logits
        layout = Layout(sum(counts), kept, len(batch), -(-longest // size))
        parts = []
        for group in range(storage.num_groups):
            if group:
                step = counts, starts, keep, [new.table.of_group(group).blocks for new in batch]
            packed = layout.pack(*step, size, model.device)
            parts.append(layout.split(packed.to(model.device, non_blocking=True)))
        there, *others = parts
        plan = there.plan(size, longest_new, longest, storage, others)
        try:
            return model.forward(token_ids, there.positions, plan, there.kept)
        except Exception as error:
            if not (is_out_of_memory(error) and graphs and graphs.on):
                raise
            graphs.make_room()
        return model.forward(token_ids, there.positions, plan, there.kept)

    def sample(
        self, logits: torch.Tensor, sampling: Sequence[SamplingParams], u: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if logits.shape[-1] < SHORTEST:
            return super().sample(logits, sampling, u)
        return sample(logits, sampling, u, _softmax)

    def first(self, layers: int) -> Backend:
        return GpuBackend(self.model.first(layers), self._graphs)

    def failures(self) -> dict[Part, str]:
        failed: dict[Part, str] = {"cuda_graph": self._graphs.failure} if self._graphs and self._graphs.failure else {}
        return super().failures() | failed

    def launch_ahead(self, batch: Sequence[NewTokens], storage: KVStorage) -> LaunchedPass | None:
        """As ``Backend.launch_ahead``, if the step is captured already. Launching others takes the host as long as the
        GPU needs for them, and capturing one now would delay the tokens that are about to be read."""
        bucket = Bucket.of(len(batch), max(len(new.token_ids) for new in batch), max(new.stop for new in batch))
        if not self.launches_ahead or not self._graphs.has(self.model, bucket):
            return None
        try:
            timer = StepTimer(self.model.device)
            logits = self.forward(batch, storage)
            timer.mark("verify")
        except Exception:  # computed in its turn, it succeeds or says why not
            log.warning("a step could not be launched ahead", exc_info=True)
            return None
        return LaunchedPass(logits, timer)

    @property
    def launches_ahead(self) -> bool:
        return bool(self._graphs and self._graphs.on)

    @property
    def num_captured(self) -> int:
        return self._graphs.count if self._graphs else 0

    @property
    def capturing(self) -> str | None:
        return self._graphs and self._graphs.capturing

    def captures(
        self, draft: Backend | None, cache: KVCache, config: EngineConfig, sequences: int, longest: int
    ) -> Iterator[tuple[str, Callable[[], None]]]:
        """As ``Backend.captures``. The target decodes single tokens and verifies whole rounds; a draft model reads one
        token, or two after a fully accepted round. Early exits and rounds cut short are captured on first use."""
        wanted = [(self.model, cache.target, 1)]
        if config.speculative != "off":
            wanted.append((self.model, cache.target, config.num_speculative_tokens + 1))
        if config.speculative == "draft":
            wanted += [(draft.model, cache.draft, 1), (draft.model, cache.draft, 2)]
        for most in _powers_of_two(1, sequences):
            for context in _powers_of_two(SHORTEST_CONTEXT, longest):
                for model, storage, new in wanted:
                    bucket = Bucket.of(most, new, context)
                    if bucket and self.launches_ahead:
                        capture = partial(self._graphs.capture, model, bucket, cache.blocks.block_size, storage)
                        yield f"{model.name}, {bucket}", capture

    def try_again(self) -> None:
        if self._graphs:
            self._graphs.try_again()

    def close(self) -> None:
        if self._graphs:
            self._graphs.drop()


def _softmax(logits: torch.Tensor) -> tuple[torch.Tensor, Callable[[], torch.Tensor]]:
    with launching(logits):
        p, likeliest = softmax(logits.contiguous())
    return p, lambda: likeliest


def _powers_of_two(first: int, last: int) -> list[int]:
    """``first``, twice that and so on, up to the first that is not less than ``last``."""
    powers = [first]
    while powers[-1] < last:
        powers.append(2 * powers[-1])
    return powers
