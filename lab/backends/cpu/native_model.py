"""A language model as ``step.c`` sees it: packed weights, pointers and sizes; and which models it can compute."""

import threading
from array import array
from collections.abc import Sequence
from ctypes import Array, addressof, byref, c_int32, c_void_p
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedConfig

from lab.backends.cpu.build import BuildError, library
from lab.backends.cpu.cpu_count import threads
from lab.backends.cpu.native_sampler import described
from lab.backends.cpu.structs import (
    Layer,
    Linear,
    ModelStruct,
    PackedWeights,
    PlanStruct,
    Slots,
    describe,
    pack,
    packed_size,
)
from lab.backends.interface import DraftTokens, NewTokens
from lab.config import SamplingParams
from lab.kv_cache.attention_metadata import side_by_side
from lab.kv_cache.storage import KVStorage
from lab.models.language_model import LanguageModel
from lab.models.model_shape import ModelShape
from lab.models.quantization import quantization_method
from lab.models.support import unlike_llama, unlike_llama_config

MOST_LANES = 16
"""Float32 numbers in the longest vector register there is."""


class NativeModel:
    """A Llama-shaped model on a CPU, in float32, with a copy of its matrices in bfloat16.

    The copy is exact: a model whose matrices bfloat16 cannot hold is refused.

    Args:
        model: one without a ``refusal``.
        rounded: where the processor has instructions for it (AVX512-BF16), round the inputs of linear layers to
            bfloat16 as well, as a GPU that computes in bfloat16 does. Sums stay float32. Several rows then cost
            hardly more than one.

    Attributes:
        rounded: whether inputs are rounded.
        weight_bytes: of the packed matrices.
        output_head: of the model, and ``packed_head`` as C sees it.

    Raises:
        BuildError: ``step.c`` cannot be compiled here.
    """

    def __init__(self, model: LanguageModel, *, rounded: bool = False) -> None:
        body, config = model.model.model, model.model.config
        self._begin([module for module in model.model.modules() if isinstance(module, nn.Linear)], rounded)
        self._layers, self.output_head = model.layers, model.model.lm_head
        layers = (Layer * model.layers)(*(self._layer(layer) for layer in body.layers))
        positions = torch.arange(model.context_length)[None]
        with torch.inference_mode():
            cosine, sine = body.rotary_emb(torch.zeros(1, dtype=torch.float32), positions)
        self._model = ModelStruct(
            hidden=config.hidden_size,
            heads=model.kv_heads * model.query_groups,
            kv_heads=model.kv_heads,
            head_dim=model.head_dim,
            vocabulary=config.vocab_size,
            epsilon=config.rms_norm_eps,
            scaling=body.layers[0].self_attn.scaling,
            rounded=self.rounded,
            embedding=self._numbers(body.embed_tokens.weight),
            final_norm=self._numbers(body.norm.weight),
            cosine=self._numbers(cosine[0]),
            sine=self._numbers(sine[0]),
            layer=layers,
            head=self._linear(self.output_head),
        )

    def _begin(self, linears: Sequence[nn.Linear], rounded: bool) -> None:
        """Make room for the packed matrices of ``linears``."""
        compiled = library()
        self.rounded = rounded and bool(c_int32.in_dll(compiled, "has_bfloat16_products").value)
        self._library, self._lanes = compiled, c_int32.in_dll(compiled, "vector_lanes").value
        self._alive: list[object] = []  # what C points to
        self._storages: WeakKeyDictionary[KVStorage, Array[Slots]] = WeakKeyDictionary()
        numbers = sum(packed_size(*linear.weight.shape, self._lanes) for linear in linears)
        self._weights, self.weight_bytes = PackedWeights(numbers), 2 * numbers

    @property
    def packed_head(self) -> Linear:
        return self._model.head

    def step(
        self,
        batch: list[NewTokens],
        layers: int,
        storage: KVStorage | None,
        tapped: Sequence[int] = (),
        states: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Compute the new tokens of every sequence through the first ``layers`` layers, the last norm and the head,
        and store their keys and values. Without a cache all tokens are new, and nothing is kept.

        Args:
            tapped: layers, as in ``Taps``, whose inputs are written to ``states`` [tokens, tapped x hidden] float32.

        Returns:
            [sum of keep, vocabulary] float32 logits, sequence by sequence.

        Raises:
            MemoryError: not enough for the step's activations.
        """
        plan, slots, _alive = self._plan(batch, storage)
        logits = torch.empty(plan.kept, self._model.head.outputs, dtype=torch.float32)
        wanted = (c_int32 * len(tapped))(*tapped)
        if states is not None:
            plan.num_tapped, plan.tapped, plan.states = len(tapped), addressof(wanted), states.data_ptr()
        where = byref(self._model), layers, byref(slots), byref(plan)
        refuse_lack_of_memory(self._library.forward(*where, _pointer(logits), threads()))
        return logits

    def decode_ahead(
        self,
        batch: list[NewTokens],
        layers: int,
        storage: KVStorage,
        windows: Sequence[int],
        sampling: Sequence[SamplingParams],
        uniforms: Sequence[torch.Tensor],
        states: torch.Tensor | None = None,
    ) -> list[DraftTokens]:
        """Compute the new tokens of every sequence, choose the next, feed it back, and so on: ``windows[s]`` tokens, of
        which the last is not fed back. Equivalent to that many calls of ``step`` and
        ``lab.backends.torch.sampler.sample``.

        Args:
            sampling: one per sequence.
            uniforms: [windows[s]] float64 in [0, 1) for each sequence.
            states: float32, what a head that drafts in a chain takes in (``NativeHead.take_in``).

        Raises:
            MemoryError: see ``step``.
        """
        width = max(windows)
        plan, slots, _alive = self._plan(batch, storage)
        tokens = torch.empty(len(batch), width, dtype=torch.long)
        q = torch.empty(len(batch), width, self._model.vocabulary, dtype=torch.float32)
        drawn = None if all(params.greedy for params in sampling) else padded(uniforms)
        choices, _also_alive = described(sampling, drawn, width)
        if states is not None:
            self.take_in(plan, states)
        many = (c_int32 * len(windows))(*windows)
        model, where = (byref(self._model), layers, byref(slots), byref(plan)), (_pointer(tokens), _pointer(q))
        failed = self._library.decode_ahead(*model, many, width, byref(choices), *where, threads())
        refuse_lack_of_memory(failed)
        return [DraftTokens(tokens[s, :window], q[s, :window]) for s, window in enumerate(windows)]

    def _plan(self, batch: list[NewTokens], storage: KVStorage | None) -> tuple[PlanStruct, Array[Slots], object]:
        """The plan of a step, the slots it writes to, and the objects to keep alive until it is done."""
        counts = [new.token_ids.numel() for new in batch]
        if storage is None:
            slots = self._scratch(len(batch) * max(counts))
            tables, block_size = [array("i", [i]) for i in range(len(batch))], max(counts)
        else:
            slots = self._storage(storage)
            tables, block_size = [new.table.blocks for new in batch], batch[0].table.pool.block_size
        height = max(map(len, tables))
        keep, last = array("i"), 0
        for new, count in zip(batch, counts, strict=True):
            last += count
            keep.extend(range(last - new.keep, last))
        token_ids = batch[0].token_ids if len(batch) == 1 else torch.cat([new.token_ids for new in batch])
        arrays = array("i", [new.start for new in batch]), array("i", counts), side_by_side(tables, height), keep
        *where, kept = (some.buffer_info()[0] for some in arrays)
        sizes = len(batch), last, len(keep), block_size, height
        return PlanStruct(*sizes, *where, token_ids.data_ptr(), kept), slots, (arrays, token_ids)

    # -- what C points to ----------------------------------------------------------------------

    def _storage(self, storage: KVStorage) -> Array[Slots]:
        if storage not in self._storages:
            self._storages[storage] = describe(storage)
        return self._storages[storage]

    def _scratch(self, slots: int) -> Array[Slots]:
        """Scratch space for one layer's keys and values, which all layers use in turn."""
        shape = {"kv_heads": self._model.kv_heads, "head_dim": self._model.head_dim}
        one = KVStorage("auto", slots, layers=1, **shape, dtype=torch.float32, device=torch.device("cpu"))
        scratch = describe(one, self._layers)
        scratch.alive = one
        return scratch

    def _layer(self, layer: nn.Module) -> Layer:
        attention, mlp = layer.self_attn, layer.mlp
        norms = (getattr(attention, name, None) for name in ("q_norm", "k_norm"))
        return Layer(
            self._numbers(layer.input_layernorm.weight),
            self._numbers(layer.post_attention_layernorm.weight),
            *(self._numbers(norm.weight) if norm is not None else None for norm in norms),
            *(self._linear(getattr(attention, f"{name}_proj")) for name in "qkvo"),
            *(self._linear(getattr(mlp, f"{name}_proj")) for name in ("gate", "up", "down")),
        )

    def _linear(self, linear: nn.Linear) -> Linear:
        outputs, inputs = linear.weight.shape
        packed = self._weights.add(pack(linear.weight.detach(), self._lanes))
        bias = self._numbers(linear.bias) if linear.bias is not None else None
        return Linear(packed, bias, inputs, outputs)

    def _numbers(self, tensor: torch.Tensor) -> int:
        tensor = tensor.detach().float().contiguous()
        self._alive.append(tensor)
        return tensor.data_ptr()


def padded(rows: Sequence[torch.Tensor]) -> torch.Tensor:
    """Rows of numbers as one tensor, the shorter ones padded with 0."""
    return rows[0] if len(rows) == 1 else pad_sequence(list(rows), batch_first=True)


def _pointer(tensor: torch.Tensor) -> c_void_p:
    return c_void_p(tensor.data_ptr())


def refuse_lack_of_memory(failed: int) -> None:
    """Raises MemoryError if a call of C has ``failed``."""
    if failed:
        raise MemoryError("a step's activations do not fit in memory")


class NativeStep:
    """A model's step in C, once it is ready.

    Attributes:
        model: None: it is not ready yet, or cannot compute this model.
        failure: why it could not be compiled, for a model that it could compute.
    """

    def __init__(self) -> None:
        self.model: NativeModel | None = None
        self.failure: str | None = None
        self._identity: int | None = None
        self._lock = threading.Lock()

    def prepare(self, model: LanguageModel) -> None:
        """Compile and pack, unless that is done. Takes a second, or a few the first time on a machine."""
        with self._lock:
            if self._identity == (identity := model.identity()):
                return
            self._identity, self.model, self.failure = None, None, None
            if not refusal(model):
                try:
                    self.model = NativeModel(model, rounded=model.rounded)
                except BuildError as error:
                    self.failure = f"Torch computes the steps, several times slower: {error}."
            self._identity = identity


_steps: WeakKeyDictionary[LanguageModel, NativeStep] = WeakKeyDictionary()


def native_step(model: LanguageModel) -> NativeStep:
    """The step in C of a model, which all engines share that compute it."""
    return _steps.setdefault(model, NativeStep())


def refusal(model: LanguageModel) -> str | None:
    """The reason why ``step.c`` cannot compute this model, in a sentence; None if it can."""
    inner = model.model
    if model.device.type != "cpu" or model.dtype != torch.float32:
        return f"it computes float32 on a CPU, and this model is {model.dtype} on {model.device.type}"
    if different := unlike_llama(model.model, model.layers):
        return different
    if model.padding:
        return "its vocabulary is made as wide as another model's"
    if different := unlike_config(inner.config):
        return different
    if not all(map(fits_bfloat16, inner.modules())):
        return "its matrices hold more digits than bfloat16 can"
    return None


def fits_bfloat16(module: nn.Module) -> bool:
    """True for a linear layer whose weights bfloat16 can hold, and for what is no linear layer."""
    return not isinstance(module, nn.Linear) or torch.equal(module.weight, module.weight.bfloat16().float())


def packed_parameters(config: PreTrainedConfig, parameters: int) -> int:
    """Number of a model's ``parameters`` that the step in C copies into bfloat16 (``NativeModel``) if it is loaded in
    float32: all but an embedding table that is not the head too. (Norms and biases are not copied either, but are few.)
    0: the configuration describes a model that it cannot compute, or weights stored in another dtype than bfloat16.
    """
    refused = unlike_llama_config(config) or unlike_config(config) or quantization_method(config)
    if refused or config.dtype not in (None, torch.bfloat16):
        return 0
    shape = ModelShape.from_config(config)
    return parameters - (0 if shape.tied else shape.vocabulary * shape.hidden_size)


def unlike_config(config: PreTrainedConfig) -> str | None:
    """The reason why a configuration of Llama's layers describes a model that ``step.c`` cannot compute."""
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type", "default") not in ("default", "linear", "llama3", "yarn"):
        return f"its rotary embedding changes with the length ({rope['rope_type']})"
    shape = ModelShape.from_config(config)
    if any(size % MOST_LANES for size in (shape.hidden_size, shape.intermediate_size, shape.head_dim)):
        return f"its hidden, intermediate and head sizes are not multiples of {MOST_LANES}"
    return None
