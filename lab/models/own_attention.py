"""Models that keep their own attention, over the lab's slots, sequence by sequence.

Some models cannot compute a packed pass: one counts its positions itself, one adds to its scores a bias by distance
(ALiBi: Press et al., 2108.12409) or hides what lies in another chunk, one does not look its attention up. Each is given
the sequences one after another, and a cache of transformers' that stores in the lab's slots and reads from them. So
blocks, prefixes, formats and rollback are as with any other model; a step reads the weights once per sequence.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Mapping

import torch
from torch.nn import functional as F
from transformers import Cache, DynamicLayer, PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import DynamicIndexedLayer

from lab.kv_cache.attention_metadata import StepPlan
from lab.kv_cache.storage import LayerStorage, SharedLayer
from lab.models.model_shape import attends, uses_alibi

TWO_PATHS = {
    "diffllama": "subtracts one attention from another",
    "jetmoe": "repeats its keys and values for its experts",
}
"""Model types whose attention the lab's cannot compute, for reasons that no configuration says."""


UNEVEN = ("mimo_v2_flash",)
"""Model types with heads of several sizes that their configurations do not list by layer."""


def own_attention(config: PreTrainedConfig, kind: type[PreTrainedModel] | None) -> str | None:
    """Why a model is computed with its own attention, in a clause; None: the lab's can compute it."""
    text = config.get_text_config(decoder=True)
    if not attends(config):
        return None
    if uses_alibi(text):
        return "adds a bias by distance to its scores (ALiBi)"
    if (chunk := getattr(text, "attention_chunk_size", None)) is not None:
        return f"sees nothing before its chunk of {chunk} positions"
    if uneven := uneven_slots(config):
        return uneven
    if text.model_type in TWO_PATHS:
        return TWO_PATHS[text.model_type]
    if kind is None:
        return None
    if not _looks_up_attention(kind):
        return "is written into its layers"
    if "position_ids" not in inspect.signature(kind.forward).parameters:
        return "goes with positions that it counts itself"
    return None


def uneven_slots(config: PreTrainedConfig) -> str | None:
    """Why a model's slots are not a key and a value of one size in every layer, in a clause; None: they are."""
    text = config.get_text_config(decoder=True)
    if "indexed_attention" in (getattr(text, "layer_types", None) or ()):
        return "chooses among positions by keys of an indexer, which it also keeps"
    if getattr(text, "is_heterogeneous", False) or text.model_type in UNEVEN:
        return "has heads of other sizes in some layers"
    return None


@torch.inference_mode()
def numbers_kept(model: PreTrainedModel) -> int:
    """The most numbers in a key or a value of one token and layer, counted over one token; with latents, of all that
    a layer keeps."""
    cache = Cache(layer_class_to_replicate=DynamicIndexedLayer)
    device = model.get_input_embeddings().weight.device
    model(input_ids=torch.zeros(1, 1, dtype=torch.long, device=device), cache=cache, use_cache=True)
    found = [layer for layer in cache.layers if layer.is_initialized]
    if any(layer.is_indexer_initialized for layer in found):
        parts = ((layer.keys, layer.values, layer.indexer_keys) for layer in found)
        return max(sum(part.numel() for part in some if part is not None) for some in parts)
    return max(part.numel() for layer in found for part in (layer.keys, layer.values))


def takes_cache(kind: type[PreTrainedModel]) -> bool:
    """True if a model of transformers keeps its keys and values in a cache that it is given."""
    return "cache" in inspect.signature(kind.forward).parameters


class SlotLayer(DynamicLayer):
    """One sequence's keys and values in one layer, as transformers sees them.

    Args:
        sizes: kv_heads, head_dim and kv_vectors of a slot, which one of fewer numbers does not fill.
        start: tokens in the cache so far.
        write: [T] slots of the new tokens.
        read: the slots of all its tokens, the new ones included.
    """

    def __init__(
        self,
        storage: LayerStorage | SharedLayer,
        sizes: Mapping[str, int],
        start: int,
        write: torch.Tensor,
        read: slice | torch.Tensor,
    ) -> None:
        super().__init__()
        self.storage, self.sizes, self.length, self.write, self.read = storage, sizes, start, write, read
        self.latents = torch.empty(0)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: object, **__: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store [1, heads, T, head_dim] of new tokens; return those of all, [1, heads, L, head_dim]."""
        _, heads, count, dim = key_states.shape
        fits = heads * dim <= self.sizes["kv_heads"] * self.sizes["head_dim"]
        again = 1 if fits else heads // self.sizes["kv_heads"]  # Falcon 40B hands on each as often as queries share it
        key, value = (new[0, ::again].transpose(0, 1).flatten(1) for new in (key_states, value_states))
        self.length += count
        if self.sizes["kv_vectors"] == 1:
            self.latents = torch.cat((key, value), dim=1)
            found = self._through(self.latents)[0].split((key.shape[1], value.shape[1]), dim=1)
        else:
            found = self._through(key, value)
        return tuple(
            one.unflatten(1, (heads // again, -1)).transpose(0, 1).repeat_interleave(again, 0)[None] for one in found
        )

    def update_indexer(self, indexer_key_states: torch.Tensor) -> torch.Tensor:
        """Store [1, T, numbers] beside the latents of the same tokens; return those of all, [1, L, numbers]."""
        whole = torch.cat((self.latents, indexer_key_states[0]), dim=1)
        return self._through(whole)[0][None, :, self.latents.shape[1] :]

    def _through(self, *rows: torch.Tensor) -> list[torch.Tensor]:
        """Store one or two vectors per new token, [T, numbers] each; return those of all tokens."""
        heads, dim = self.sizes["kv_heads"], self.sizes["head_dim"]
        padded = [F.pad(one, (0, heads * dim - one.shape[1])).unflatten(1, (heads, dim)) for one in rows]
        self.storage.write(self.write, padded[0], padded[-1])
        found = zip(self.storage.read(self.read), rows, strict=False)
        return [one.flatten(1)[:, : new.shape[1]] for one, new in found]

    def get_seq_length(self) -> int:
        return self.length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0


def by_sequence(
    model: PreTrainedModel,
    sizes: Mapping[str, int],
    token_ids: torch.Tensor,
    positions: torch.Tensor,
    plan: StepPlan,
    keep: torch.Tensor,
) -> torch.Tensor:
    """Logits of the rows ``keep`` of a packed pass, [K, vocabulary]. ``sizes``: as ``SlotLayer``'s; the others as
    ``LanguageModel.forward``'s."""
    found, short = None, "logits_to_keep" in inspect.signature(type(model).forward).parameters
    for rows, start, read in _sequences(positions, plan):
        how = {"use_cache": False}
        if plan.storage is not None:
            layers = [SlotLayer(layer, sizes, start, plan.write[rows], read) for layer in plan.storage.layers]
            how = {"use_cache": True, "cache": Cache(layers=layers)}
        here = (keep >= rows.start) & (keep < rows.stop)
        wanted = keep[here] - rows.start
        if short:
            how["logits_to_keep"] = wanted
        logits = model(input_ids=token_ids[None, rows], **how).logits[0]
        found = logits.new_empty(len(keep), logits.shape[-1]) if found is None else found
        found[here] = logits if short else logits[wanted]
    return found


def _sequences(positions: torch.Tensor, plan: StepPlan) -> Iterator[tuple[slice, int, slice | torch.Tensor | None]]:
    """Of each sequence of a step its rows, the position of its first new token, and the slots of all its tokens."""
    for group in plan.groups:
        first = group.rows.start
        spans = positions[group.rows].view(group.sequences, -1)[:, [0, -1]].tolist()
        for i, (start, last) in enumerate(spans):
            read = group.read
            if isinstance(read, torch.Tensor):
                read = read.view(group.sequences, -1)[i, : last + 1]
            yield slice(first, first := first + last + 1 - start), start, read


def _looks_up_attention(kind: type[PreTrainedModel]) -> bool:
    """True if its attention is taken from transformers' registry. Hybrids with recurrent layers do not say so of
    themselves, because those layers are not in it."""
    return kind._supports_attention_backend or hasattr(sys.modules[kind.__module__], "ALL_ATTENTION_FUNCTIONS")
