"""A language model as ``step.c`` sees it: packed weights, pointers and sizes."""

from __future__ import annotations

import ctypes
import threading
from array import array
from ctypes import POINTER, Structure, c_float, c_int32, c_int64, c_void_p
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import torch
from torch import nn

from lab.kv.storage import KVStorage, parts
from lab.native.build import BuildError, library
from lab.pair.devices import is_dispatched

if TYPE_CHECKING:
    from lab.decode.forward import NewTokens
    from lab.pair.models import LanguageModel

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
"""Model types whose layers are: RMSNorm, attention with rotary embedding, RMSNorm, SwiGLU."""
FORMATS = ("native", "int8", "int4")
MOST_LANES = 16
"""Numbers in the longest register there is."""


class _Linear(Structure):
    _fields_ = (("weight", c_void_p), ("bias", c_void_p), ("inputs", c_int32), ("outputs", c_int32))


class _Layer(Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("attention_norm", "mlp_norm", "query_norm", "key_norm")),
        *((name, _Linear) for name in ("query", "key", "value", "output", "gate", "up", "down")),
    )


class _Model(Structure):
    _fields_ = (
        *((name, c_int32) for name in ("hidden", "heads", "kv_heads", "head_dim")),
        *((name, c_float) for name in ("epsilon", "scaling")),
        ("rounded", c_int32),
        *((name, c_void_p) for name in ("embedding", "final_norm", "cosine", "sine")),
        ("layer", POINTER(_Layer)),
        ("head", _Linear),
    )


class _Slots(Structure):
    _fields_ = tuple((name, c_void_p) for name in ("keys", "values", "key_scales", "value_scales"))


class _Storage(Structure):
    _fields_ = (
        *((name, c_int32) for name in ("format", "group")),
        *((name, c_int64) for name in ("slot_bytes", "head_bytes", "slot_scales", "head_scales")),
        ("layer", POINTER(_Slots)),
    )


class _Plan(Structure):
    _fields_ = (
        *((name, c_int32) for name in ("sequences", "rows", "kept", "block_size", "height")),
        *((name, c_void_p) for name in ("starts", "counts", "tables", "token_ids", "keep")),
    )


class NativeModel:
    """A Llama-shaped model on a CPU, in float32, with a copy of its matrices in bfloat16.

    The copy is exact: a model whose matrices bfloat16 cannot hold is refused.

    Args:
        model: see ``refusal``.
        rounded: where the processor has instructions for it (AVX512-BF16), round the inputs of linear layers to
            bfloat16 as well, as a GPU does that computes in bfloat16. Sums stay float32. Several rows then cost
            hardly more than one.

    Attributes:
        rounded: whether they are.

    Raises:
        BuildError: ``step.c`` cannot be compiled here.
    """

    def __init__(self, model: LanguageModel, *, rounded: bool = False) -> None:
        compiled = library()
        self.rounded = rounded and bool(c_int32.in_dll(compiled, "rounds").value)
        self._forward, self._lanes = compiled.forward, c_int32.in_dll(compiled, "lanes_in_use").value
        self._kept: list[object] = []  # what C points to
        self._storages: WeakKeyDictionary[KVStorage, _Storage] = WeakKeyDictionary()
        body, config = model.model.model, model.model.config
        self._layers, self._vocabulary = model.layers, config.vocab_size
        layers = (_Layer * model.layers)(*(self._layer(layer) for layer in body.layers))
        positions = torch.arange(model.context_length)[None]
        with torch.inference_mode():
            cosine, sine = body.rotary_emb(torch.zeros(1), positions)
        self._model = _Model(
            hidden=config.hidden_size,
            heads=model.kv_heads * model.query_groups,
            kv_heads=model.kv_heads,
            head_dim=model.head_dim,
            epsilon=config.rms_norm_eps,
            scaling=body.layers[0].self_attn.scaling,
            rounded=self.rounded,
            embedding=self._numbers(body.embed_tokens.weight),
            final_norm=self._numbers(body.norm.weight),
            cosine=self._numbers(cosine[0]),
            sine=self._numbers(sine[0]),
            layer=layers,
            head=self._linear(model.model.lm_head),
        )

    def step(self, batch: list[NewTokens], layers: int, storage: KVStorage | None) -> torch.Tensor:
        """Compute the new tokens of every sequence through the first ``layers`` layers, the last norm and the head,
        and store their keys and values. Without a cache every token is new, and nothing is kept.

        Returns:
            [sum of keep, vocabulary] float32 logits, sequence by sequence.

        Raises:
            MemoryError: too little for the step's activations.
        """
        counts = [len(new.token_ids) for new in batch]
        if storage is None:
            slots = self._scratch(len(batch) * max(counts))
            tables, block_size = [[i] for i in range(len(batch))], max(counts)
        else:
            slots = self._storage(storage)
            tables, block_size = [new.table.blocks for new in batch], batch[0].table.pool.block_size
        height = max(map(len, tables))
        keep, last = array("i"), 0
        for new, count in zip(batch, counts, strict=True):
            last += count
            keep.extend(range(last - new.keep, last))
        token_ids = torch.cat([new.token_ids for new in batch])
        arrays = (
            array("i", [new.start for new in batch]),
            array("i", counts),
            array("i", [block for table in tables for block in table + [0] * (height - len(table))]),
        )
        starts, many, blocks = (some.buffer_info()[0] for some in arrays)
        plan = _Plan(
            sequences=len(batch),
            rows=last,
            kept=len(keep),
            block_size=block_size,
            height=height,
            starts=starts,
            counts=many,
            tables=blocks,
            token_ids=token_ids.data_ptr(),
            keep=keep.buffer_info()[0],
        )
        logits = torch.empty(len(keep), self._vocabulary)
        failed = self._forward(
            ctypes.byref(self._model),
            layers,
            ctypes.byref(slots),
            ctypes.byref(plan),
            c_void_p(logits.data_ptr()),
            torch.get_num_threads(),
        )
        if failed:
            raise MemoryError("a step's activations do not fit in memory")
        return logits

    # -- what C points to ----------------------------------------------------------------------

    def _storage(self, storage: KVStorage) -> _Storage:
        if storage not in self._storages:
            self._storages[storage] = describe(storage)
        return self._storages[storage]

    def _scratch(self, slots: int) -> _Storage:
        """Room for one layer's keys and values, which all layers use in turn."""
        shape = {"kv_heads": self._model.kv_heads, "head_dim": self._model.head_dim}
        one = KVStorage("auto", slots, layers=1, **shape, dtype=torch.float32, device=torch.device("cpu"))
        scratch = describe(one, self._layers)
        scratch.kept = one
        return scratch

    def _layer(self, layer: nn.Module) -> _Layer:
        attention, mlp = layer.self_attn, layer.mlp
        norms = (getattr(attention, name, None) for name in ("q_norm", "k_norm"))
        return _Layer(
            self._numbers(layer.input_layernorm.weight),
            self._numbers(layer.post_attention_layernorm.weight),
            *(self._numbers(norm.weight) if norm is not None else None for norm in norms),
            *(self._linear(getattr(attention, f"{name}_proj")) for name in "qkvo"),
            *(self._linear(getattr(mlp, f"{name}_proj")) for name in ("gate", "up", "down")),
        )

    def _linear(self, linear: nn.Linear) -> _Linear:
        outputs, inputs = linear.weight.shape
        packed = pack(linear.weight.detach(), self._lanes)
        self._kept.append(packed)
        bias = self._numbers(linear.bias) if linear.bias is not None else None
        return _Linear(packed.data_ptr(), bias, inputs, outputs)

    def _numbers(self, tensor: torch.Tensor) -> int:
        tensor = tensor.detach().float().contiguous()
        self._kept.append(tensor)
        return tensor.data_ptr()


class Native:
    """A model's step in C, from when it is ready.

    Args:
        rounded: see ``NativeModel``.

    Attributes:
        model: None: not yet, or not for this model.
        failure: why there will be none, where there could be.
    """

    def __init__(self, *, rounded: bool = False) -> None:
        self.rounded = rounded
        self.model: NativeModel | None = None
        self.failure: str | None = None
        self._identity: int | None = None
        self._lock = threading.Lock()

    def prepare(self, model: LanguageModel) -> None:
        """Compile and pack, unless that is done. Takes a second; once on a machine, a few."""
        with self._lock:
            if self._identity == (identity := model.identity()):
                return
            self._identity, self.model, self.failure = identity, None, None
            if refusal(model):
                return
            try:
                self.model = NativeModel(model, rounded=self.rounded)
            except BuildError as error:
                self.failure = f"Torch computes the steps, several times slower: {error}."


def pack(weight: torch.Tensor, lanes: int) -> torch.Tensor:
    """[outputs, inputs] -> [blocks, inputs / 2, 2 * lanes, 2] bfloat16: blocks of 2 * lanes outputs, padded with zeros.

    A pair holds an output's weights of two inputs side by side.
    """
    outputs, inputs = weight.shape
    padded = weight.new_zeros(-(-outputs // (2 * lanes)) * 2 * lanes, inputs, dtype=torch.bfloat16)
    padded[:outputs] = weight
    return padded.view(-1, 2 * lanes, inputs // 2, 2).transpose(1, 2).contiguous()


def describe(storage: KVStorage, repeated: int = 1) -> _Storage:
    """Where a cache's numbers and scales lie, and how far apart; its layers ``repeated`` times over."""
    slots = []
    for layer in storage.layers * repeated:
        form, tensors = parts(layer)
        slots.append(_Slots(*(tensor.data_ptr() for tensor in tensors)))
    keys, _, scales, _ = tensors
    groups = scales.shape[-1]
    head_dim = keys.shape[-1] * (2 if form == "int4" else 1)
    bytes_apart = (keys.stride(i) * keys.element_size() for i in (0, 1))
    layout = FORMATS.index(form), head_dim // groups, *bytes_apart, scales.stride(0), scales.stride(1)
    return _Storage(*layout, (_Slots * len(slots))(*slots))


def refusal(model: LanguageModel) -> str | None:
    """Why ``step.c`` cannot compute this model, in a sentence; None if it can."""
    inner, config = model.model, model.model.config
    if model.device.type != "cpu" or model.dtype != torch.float32:
        return f"it computes float32 on a CPU, and this model is {model.dtype} on {model.device.type}"
    if is_dispatched(inner):
        return "its weights are in several places"
    if config.model_type not in FAMILIES:
        return f"it knows the layers of {', '.join(FAMILIES)}, not of {config.model_type}"
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type", "default") not in ("default", "linear", "llama3", "yarn"):
        return f"its rotary embedding changes with the length ({rope['rope_type']})"
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        return "its rotary embedding is partial"
    if config.hidden_act != "silu":
        return f"its activation is {config.hidden_act}, not silu"
    if any(size % MOST_LANES for size in (config.hidden_size, config.intermediate_size, model.head_dim)):
        return f"its hidden, intermediate and head sizes are not multiples of {MOST_LANES}"
    linears = [module for module in inner.modules() if isinstance(module, nn.Linear)]
    kinds = {type(module) for module in linears}
    if kinds != {nn.Linear} or len(linears) != 7 * model.layers + 1:
        return "its matrices are not plain ones"
    if any(not torch.equal(module.weight, module.weight.bfloat16().float()) for module in linears):
        return "its matrices hold more digits than bfloat16 can"
    return None
