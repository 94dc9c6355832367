"""The ground of the mistakes: the embedded pair, which reads tokens with whatever KV cache it is handed.

The models are transformers' own; only their attention is replaced by one that asks the cache for keys and values.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch.nn import functional as F
from transformers import AttentionInterface, AutoModelForCausalLM, PreTrainedModel

from lab.measure.difference import common_length
from lab.models.loader import EMBEDDED_DRAFTS, WEIGHTS

NAME = "decode_lab_mistakes"
"""The attention's name in transformers' registry."""


class AnyCache(Protocol):
    """The interface of a cache. ``length``: tokens in it."""

    length: int

    def update(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Store the new tokens' keys and values [heads, n, dim]; return those of all tokens so far."""


class GrowingCache:
    """A cache without mistakes, which grows by concatenation. ``tokens``: those in it."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self._stored: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    @property
    def length(self) -> int:
        return len(self.tokens)

    def update(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if layer in self._stored:
            key, value = (torch.cat(both, 1) for both in zip(self._stored[layer], (key, value), strict=True))
        self._stored[layer] = key, value
        return key, value

    def common(self, text: Sequence[int]) -> int:
        """Number of first tokens that the cache and a text share."""
        return common_length(self.tokens, text)

    def truncate(self, length: int) -> None:
        """Forget all tokens from number ``length`` on."""
        self.tokens = self.tokens[:length]
        self._stored = {layer: (k[:, :length], v[:, :length]) for layer, (k, v) in self._stored.items()}


def _attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    _: object,
    scaling: float | None = None,
    kept_in: AnyCache | None = None,
    shrunk: float = 1.0,
    **__: object,
) -> tuple[torch.Tensor, None]:
    """Attention over what the cache returns; the last rows are the new tokens. ``shrunk``: values are that much smaller
    in the cache, and as much larger behind it: the same function, unless the cache loses small numbers."""
    keys, values = key[0], value[0] * shrunk
    if kept_in is not None:
        keys, values = kept_in.update(module.layer_idx, keys, values)
    new, all_ = query.shape[2], keys.shape[1]
    mask = torch.ones(new, all_, dtype=torch.bool).tril(all_ - new)
    out = F.scaled_dot_product_attention(query, keys[None], values[None], mask, scale=scaling, enable_gqa=True)
    return out.transpose(1, 2) / shrunk, None


AttentionInterface.register(NAME, _attend)


@functools.cache
def models() -> tuple[PreTrainedModel, PreTrainedModel]:
    """The embedded target and its matched draft, in float32 on the CPU."""
    folders = WEIGHTS / "target", WEIGHTS / EMBEDDED_DRAFTS["matched"]
    target, draft = (AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32) for folder in folders)
    for model in (target, draft):
        model.eval().set_attn_implementation(NAME)
    return target, draft


class Reader:
    """A model as the mistakes' code calls it.

    Args:
        watch: called before every pass; may raise to end the run.
        passes: gets the tokens read and those attended to of every pass.
        shrunk: see ``_attend``.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        watch: Callable[[], None],
        passes: list[tuple[int, int]] | None = None,
        shrunk: float = 1.0,
    ) -> None:
        self._passes = [] if passes is None else passes
        self._model, self._watch, self._shrunk = model, watch, shrunk

    @torch.inference_mode()
    def __call__(self, tokens: Sequence[int], cache: Any = None) -> torch.Tensor:
        """Read tokens, behind those in the cache. Returns [tokens, vocabulary] logits."""
        self._watch()
        if not len(tokens):
            raise IndexError("the model was given no tokens")
        ids, known = torch.tensor([list(tokens)]), 0 if cache is None else cache.length
        self._passes.append((len(tokens), known + len(tokens)))
        positions = known + torch.arange(len(tokens))[None]
        out = self._model(input_ids=ids, position_ids=positions, use_cache=False, kept_in=cache, shrunk=self._shrunk)
        if isinstance(cache, GrowingCache):
            cache.tokens = cache.tokens + list(tokens)
        return out.logits[0]
