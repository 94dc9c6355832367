"""The structs that are passed to C, field by field as in ``model.h``, and how weights and a cache get into them."""

import mmap
from contextlib import suppress
from ctypes import POINTER, Array, Structure, c_float, c_int32, c_int64, c_void_p

import torch

from lab.kv_cache.storage import KVStorage, LayerStorage, parts

FORMATS = ("plain", "int8", "int4")


class Linear(Structure):
    _fields_ = (("weight", c_void_p), ("bias", c_void_p), ("inputs", c_int32), ("outputs", c_int32))


class Layer(Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("attention_norm", "mlp_norm", "query_norm", "key_norm")),
        *((name, Linear) for name in ("query", "key", "value", "output", "gate", "up", "down")),
    )


class ChainStruct(Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("embedding_norm", "hidden_norm")),
        ("fuse", Linear),
        ("join", Linear),
        *((name, c_int32) for name in ("hidden_first", "norm_before_residual", "norm_output")),
    )


class DFlashStruct(Structure):
    _fields_ = (("fuse", Linear), ("hidden_norm", c_void_p))


class MarkovStruct(Structure):
    _fields_ = (("first", c_void_p), ("second", Linear))


class ModelStruct(Structure):
    _fields_ = (
        *((name, c_int32) for name in ("hidden", "heads", "kv_heads", "head_dim", "vocabulary")),
        *((name, c_float) for name in ("epsilon", "scaling")),
        ("rounded", c_int32),
        *((name, c_void_p) for name in ("embedding", "final_norm", "cosine", "sine")),
        ("layer", POINTER(Layer)),
        ("head", Linear),
        ("target_ids", c_void_p),
        ("chain", POINTER(ChainStruct)),
        ("dflash", POINTER(DFlashStruct)),
        ("markov", POINTER(MarkovStruct)),
    )


class Slots(Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("keys", "values", "key_scales", "value_scales")),
        *((name, c_int32) for name in ("format", "group")),
        *((name, c_int64) for name in ("slot_bytes", "head_bytes", "slot_scales", "head_scales")),
    )


class PlanStruct(Structure):
    _fields_ = (
        *((name, c_int32) for name in ("sequences", "rows", "kept", "block_size", "height")),
        *((name, c_void_p) for name in ("starts", "counts", "tables", "token_ids", "keep")),
        *(("num_tapped", c_int32), ("tapped", c_void_p), ("states", c_void_p)),
        *((name, c_void_p) for name in ("given", "fused", "last")),
    )


class Sampling(Structure):
    _fields_ = (("temperature", c_float), ("top_k", c_int32), ("top_p", c_float))


class Choices(Structure):
    _fields_ = (("sampling", POINTER(Sampling)), ("each", c_int32), ("u", c_void_p))


class VerdictStruct(Structure):
    _fields_ = (("accepted", c_int32), ("next_token", c_int32), ("p_next", c_float))


class RoundStruct(Structure):
    _fields_ = (
        *(("num_draft_tokens", c_int32), ("sampling", Sampling)),
        *((name, c_void_p) for name in ("draft_tokens", "q", "u")),
        *(("method", c_int32), ("evidence", c_void_p), ("logprobs", c_int32), ("figures", c_void_p)),
        *(("top_tokens", c_int32), ("top", c_void_p)),
    )


def pack(weight: torch.Tensor, lanes: int) -> torch.Tensor:
    """[outputs, inputs] -> [blocks, inputs / 2, 2 * lanes, 2] bfloat16: blocks of 2 * lanes outputs, padded with zeros.

    A pair holds an output's weights for two consecutive inputs.
    """
    outputs, inputs = weight.shape
    padded = weight.new_zeros(packed_size(outputs, inputs, lanes) // inputs, inputs, dtype=torch.bfloat16)
    padded[:outputs] = weight
    return padded.view(-1, 2 * lanes, inputs // 2, 2).transpose(1, 2).contiguous()


def packed_size(outputs: int, inputs: int, lanes: int) -> int:
    """Numbers in a packed matrix, zeros included."""
    return -(-outputs // (2 * lanes)) * 2 * lanes * inputs


class PackedWeights:
    """A model's packed matrices, one after another in memory of their own, which is freed with this object.

    Args:
        size: how many numbers they have together.
    """

    def __init__(self, size: int) -> None:
        self._memory = self._free = in_large_pages(size)

    def add(self, packed: torch.Tensor) -> int:
        """Copy a matrix to where the previous one ends; returns its address."""
        there, self._free = self._free.tensor_split([packed.numel()])
        there.copy_(packed.flatten())
        return there.data_ptr()


def in_large_pages(size: int) -> torch.Tensor:
    """[size] bfloat16, uninitialised. In pages of 2 MB, where the system has them: every step reads all weights, and in
    pages of 4 kB these would be thousands, more than a processor's TLB holds.
    """
    if hasattr(mmap, "MADV_HUGEPAGE"):  # Linux
        with suppress(OSError):  # a kernel without them
            memory = mmap.mmap(-1, size * torch.bfloat16.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            memory.madvise(mmap.MADV_HUGEPAGE)
            return torch.frombuffer(memory, dtype=torch.bfloat16)
    return torch.empty(size, dtype=torch.bfloat16)


def describe(storage: KVStorage, repeated: int = 1) -> Array[Slots]:
    """Each layer's format, and the addresses and strides of its numbers and scales; the layers ``repeated`` times
    over."""
    slots = [_slots(layer) for layer in storage.layers] * repeated
    return (Slots * len(slots))(*slots)


def _slots(layer: LayerStorage) -> Slots:
    form, tensors = parts(layer)
    keys, _, scales, _ = tensors
    head_dim = keys.shape[-1] * (2 if form == "int4" else 1)
    bytes_apart = (keys.stride(i) * keys.element_size() for i in (0, 1))
    layout = FORMATS.index(form), head_dim // scales.shape[-1], *bytes_apart, scales.stride(0), scales.stride(1)
    return Slots(*(tensor.data_ptr() for tensor in tensors), *layout)
