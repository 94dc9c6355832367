"""A model's dimensions, from which its cache's follow, read from its configuration alone."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn
from transformers import PreTrainedConfig

from lab.errors import UnsupportedModelError

MAX_SIZES = {"layers": 1000, "heads": 10_000, "kv_heads": 10_000, "head_dim": 10_000}
WITHOUT_ATTENTION = {"linear_attention", "conv", "mlp", "moe"}
"""Kinds of layers, by transformers' names: recurrent ones of any sort (Gated DeltaNet, Mamba2), short convolutions,
and layers that look at one position alone."""
MAX_SIZE = 10**8
"""More than any model has: a configuration may come from anybody."""
LAYERS = "decoder_layers", "num_hidden_layers"
LENGTHS = ("max_target_positions", "max_seq_len", "seq_length", "max_position_embeddings")
"""Names of the most positions that a model was made for."""
ALIBI_LENGTH = 2048
"""Those of a model with ALiBi that gives none: BLOOM's."""
STATE_LENGTH = 8192
"""Those of a model without attention, which counts no positions: Falcon Mamba's training texts."""
SIZE_NAMES = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "max_position_embeddings",
)
"""Their names in most configurations."""
MAX_COUNTS = {re.compile("layer|block|stage|depths?$"): 1000, re.compile("expert"): 100_000}
"""Of what a model has several of, by what such a number's name contains."""


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """A decoder-only transformer. Where its layers differ, the first one's sizes.

    Attributes:
        layers: how many there are.
        heads, kv_heads: query heads, and the heads of keys and values that they share.
        head_dim: numbers in one head's key, and in its value; with latent attention (MLA) in what a slot holds for all
            heads, the latent and the rotary part of the key.
        kv_vectors: of a token and KV head: a key and a value, or 1 that is both (MLA).
        head_numbers: in the key and the value of one query head.
        hidden_size, intermediate_size: width of the residual stream and of the feed-forward layers.
        vocabulary: width of the logits.
        context_length: most positions the model was made for.
        tied: whether the head is the embedding table.
        windows: of each layer the positions that a token sees (``windows_of``). Empty: all, in each.
        shared: layers that read another's keys and values.
        full_attention: ``kv_heads`` and ``head_dim`` of the layers in which a token sees all, where the others' differ
            (Gemma 4). None: they are the same.
        layer_table: numbers in a table of embeddings besides the first, with some for each layer (Gemma 3n, 4).
    """

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden_size: int
    intermediate_size: int
    vocabulary: int
    context_length: int
    tied: bool = False
    kv_vectors: int = 2
    head_numbers: int = 0
    windows: tuple[int | None, ...] = ()
    shared: frozenset[int] = frozenset()
    full_attention: tuple[int, int] | None = None
    layer_table: int = 0

    @classmethod
    def from_config(cls, config: PreTrainedConfig) -> ModelShape:
        """The shape a transformers configuration describes.

        Raises:
            UnsupportedModelError: a number is missing, or is one that no model can have.
        """
        text, full = config.get_text_config(decoder=True), _full_attention(config)
        if getattr(text, "is_heterogeneous", False):
            text = text.per_layer_config[0]
        if getattr(text, "attn_config", None) is not None and text.model_type != "mpt":
            raise UnsupportedModelError(
                f"A {text.model_type} configuration describes its attention in a section of its own, which is not "
                "read here. Those that give num_attention_heads are, such as Llama's, Qwen3's and Phi's."
            )
        hidden = _read(text, "hidden_size")
        heads = _read(text, "decoder_attention_heads", "num_attention_heads") if attends(config) else 1
        names = ("decoder_ffn_dim", "intermediate_size", "ffn_hidden_size", "n_inner")
        inner = _first(text, *names) or (getattr(text, "expansion_ratio", None) or 4) * hidden
        sizes = {
            "layers": _read(text, *LAYERS),
            "heads": heads,
            "kv_heads": _kv_heads(text, heads),
            "head_dim": (attends(config) and getattr(text, "head_dim", None)) or hidden // heads,
            "hidden_size": hidden,
            "intermediate_size": max(inner, default=0)
            if isinstance(inner, list)
            else inner,  # of each layer (Gemma 3n)
            "vocabulary": _read(text, "vocab_size"),
            "context_length": _longest(config),
        }
        latent = getattr(text, "kv_lora_rank", None)
        if latent is not None:
            rope, nope, value = (_read(text, name) for name in ("qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"))
            sizes |= {"kv_heads": 1, "head_dim": _read(text, "kv_lora_rank") + rope}
        own = 2 * sizes["head_dim"] if latent is None else nope + rope + value
        for name, size in sizes.items():
            _plausible(name, size, MAX_SIZES.get(name, MAX_SIZE))
        if sizes["heads"] % sizes["kv_heads"]:
            raise UnsupportedModelError(
                f"The configuration gives {sizes['heads']} query heads and {sizes['kv_heads']} KV heads, and as many "
                "query heads have to share each KV head."
            )
        tied = bool(getattr(text, "tie_word_embeddings", True))  # True: transformers' own default
        kept = {"kv_vectors": 2 if latent is None else 1, "head_numbers": own}
        kept |= {"windows": tuple(windows_of(config)), "shared": frozenset(kv_sources(config)), "full_attention": full}
        per_layer = (getattr(text, f"{name}_per_layer_input", 0) for name in ("vocab_size", "hidden_size"))
        return cls(**sizes, **kept, tied=tied, layer_table=math.prod(per_layer) * sizes["layers"])

    @property
    def kv_layers(self) -> Counter[int | None]:
        """The number of layers with keys and values of their own, by the positions that a token sees; None: all."""
        return self.windows_among(range(self.layers))

    def windows_among(self, layers: Iterable[int]) -> Counter[int | None]:
        """As ``kv_layers``, of some layers."""
        windows = self.windows or [None] * self.layers
        return Counter(windows[layer] for layer in layers if windows[layer] != 0 and layer not in self.shared)

    def slot(self, window: int | None) -> dict[str, int]:
        """The sizes of a slot in a layer with this window (``lab.kv_cache.kv_cache.slot_sizes``)."""
        own = self.full_attention if window is None and self.full_attention else (self.kv_heads, self.head_dim)
        return {"kv_heads": own[0], "head_dim": own[1], "kv_vectors": self.kv_vectors}

    @property
    def query_groups(self) -> int:
        """Query heads that share a KV head."""
        return self.heads // self.kv_heads

    @property
    def tables(self) -> int:
        """Numbers in the embedding table and the head."""
        return self.vocabulary * self.hidden_size * (1 if self.tied else 2)

    @property
    def sharing(self) -> str:
        """ "MHA", "GQA" (Ainslie et al., 2305.13245), "MQA" (Shazeer, 1911.02150) or "MLA" (2405.04434)."""
        if self.kv_vectors == 1:
            return "MLA"
        if self.kv_heads == self.heads:
            return "MHA"
        return "MQA" if self.kv_heads == 1 else "GQA"


def windows_of(config: PreTrainedConfig) -> list[int | None]:
    """Of each layer the positions that a token sees, its own included. None: all, as with a window that is as long as
    the longest text the model was made for (Phi-4-mini's). 0: the layer has no attention."""
    text = config.get_text_config(decoder=True)
    window, longest = getattr(text, "sliding_window", None), getattr(text, "max_position_embeddings", None)
    if isinstance(window, int) and isinstance(longest, int) and window >= longest:
        window = None
    kinds = getattr(text, "layer_types", None) or ["sliding_attention"] * _read(text, *LAYERS)
    return [window if kind == "sliding_attention" else 0 if kind in WITHOUT_ATTENTION else None for kind in kinds]


def attends(config: PreTrainedConfig) -> bool:
    """False for a model of which no layer has attention (Mamba)."""
    return any(window != 0 for window in windows_of(config))


def uses_alibi(text: PreTrainedConfig) -> bool:
    """True for attention with a bias that grows with distance (ALiBi: Press et al., 2108.12409)."""
    by_section = getattr(getattr(text, "attn_config", None), "alibi", False)
    return text.model_type == "bloom" or bool(getattr(text, "alibi", False) or by_section)


def steady_length(config: PreTrainedConfig, context_length: int) -> int:
    """The length up to which a position's rotary angles do not depend on what else is in a step.

    A longer text gets other angles with LongRoPE (Ding et al., 2402.13753) at all its positions, those of cached keys
    included, and so does every other text in the step.
    """
    rope = getattr(config.get_text_config(decoder=True), "rope_parameters", None) or {}
    by_kind = [its for its in rope.values() if isinstance(its, dict)]  # of layers, if they differ
    scaled = [its for its in (rope, *by_kind) if its.get("rope_type") == "longrope"]
    return min([context_length, *(its["original_max_position_embeddings"] for its in scaled)])


def kv_sources(config: PreTrainedConfig) -> dict[int, int]:
    """Layers that read the keys and values of another, and of each the other (Gemma 3n)."""
    text = config.get_text_config(decoder=True)
    modes, stored, found = getattr(text, "kv_sharing_modes", None) or (), {}, {}
    for layer, (mode, kind) in enumerate(zip(modes, text.layer_types, strict=True)) if modes else ():
        if mode == "store":
            stored[kind] = layer
        elif mode == "reuse":
            found[layer] = stored[kind]
    return found


def first_position(model: nn.Module) -> int:
    """The number of a text's first position: not 0 for models that count from their padding token's on (RoBERTa)."""
    counting = (it for it in model.modules() if hasattr(type(it), "create_position_ids_from_input_ids"))
    return next((it.padding_idx + 1 for it in counting if it.padding_idx is not None), 0)


def refuse_odd_numbers(given: Mapping[str, Any]) -> None:
    """Check the numbers of a config.json that transformers cannot read.

    Raises:
        UnsupportedModelError: names the first number that no model can have.
    """
    for name in SIZE_NAMES:
        if given.get(name) is not None:
            _plausible(name, given[name], MAX_SIZE)


def refuse_too_many(given: Any) -> None:
    """Check how many layers, and experts, a config.json and its sections give, before anything is made of it.

    Raises:
        UnsupportedModelError: names the first number that no model can have.
    """
    for name, found in given.items() if isinstance(given, dict) else ():
        for each in found if isinstance(found, list) else [found]:
            refuse_too_many(each)
            most = next((most for what, most in MAX_COUNTS.items() if what.search(name)), None)
            if most and isinstance(each, int) and each > most and "size" not in name:
                raise UnsupportedModelError(f"The configuration gives {each:,} as {name}: no model has that many.")


def _full_attention(config: PreTrainedConfig) -> tuple[int, int] | None:
    """``ModelShape.full_attention``, if layers with one window are alike."""
    text, found = config.get_text_config(decoder=True), {}
    if not getattr(text, "is_heterogeneous", False):
        return None
    for window, layer in zip(windows_of(config), text.per_layer_config, strict=True):
        found.setdefault(window, set()).add((layer.num_key_value_heads, layer.head_dim))
    return next(iter(found[None])) if None in found and all(len(sizes) == 1 for sizes in found.values()) else None


def _kv_heads(text: PreTrainedConfig, heads: int) -> int:
    """KV heads: one with ``multi_query``, which Falcon's newer architecture ignores (transformers' FalconAttention)."""
    if getattr(text, "multi_query", False) and not getattr(text, "new_decoder_architecture", False):
        return 1
    return _first(text, "num_key_value_heads", "num_kv_heads") or heads


def _first(text: PreTrainedConfig, *names: str) -> Any:
    return next((found for name in names if (found := getattr(text, name, None)) is not None), None)


def _longest(config: PreTrainedConfig) -> int:
    text = config.get_text_config(decoder=True)
    if _first(text, *LENGTHS) is None and (uses_alibi(text) or not attends(config)):
        return ALIBI_LENGTH if uses_alibi(text) else STATE_LENGTH
    return _read(text, *LENGTHS)


def _read(text: PreTrainedConfig, *names: str) -> int:
    found = _first(text, *names)
    _plausible(names[-1], found, MAX_SIZE)
    return found


def _plausible(name: str, size: Any, most: int) -> None:
    if not isinstance(size, int) or isinstance(size, bool) or not 1 <= size <= most:
        raise UnsupportedModelError(
            f"The configuration gives {str(size)[:40]!r} as {name}; a decoder with keys and values in every layer has "
            f"a whole number from 1 to {most:,} there."
        )
