"""A language model as the engine sees it: a transformers model with the lab's attention plugged in."""

from __future__ import annotations

import contextlib
import copy
import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.nn import functional as F
from transformers import AttentionInterface, PreTrainedModel

from lab.kv_cache.attention import NAME, attention
from lab.kv_cache.attention_metadata import BlockPlan, Group, StepPlan, current_plan
from lab.kv_cache.kv_cache import slot_sizes
from lab.models.devices import execution_device, gather_hidden_states, is_dispatched
from lab.models.experts import ExpertCounter, Experts, expert_modules, experts_of
from lab.models.latent_attention import read_latents
from lab.models.model_shape import ModelShape, first_position, kv_sources, steady_length, windows_of
from lab.models.own_attention import by_sequence, numbers_kept, own_attention, uneven_slots
from lab.models.quantization import stored_tensors
from lab.models.recurrent_layers import PassPart, recurrent_layers
from lab.models.state_head import StateHead
from lab.models.submodules import copy_modules, cut_layers, layers_of
from lab.models.support import other_attention, other_cache, refuse_unsupported
from lab.util.messages import error_summary

log = logging.getLogger(__name__)

SEALED_NAME = f"{NAME}_sealed"
"""The lab's attention as compiled layers call it: torch.compile looks neither inside it nor into the plan."""


ADAPTED = "active_adapters", "disable_adapters"
"""Properties by which ``LanguageModel.identity`` knows a layer of peft's."""


class Sealed:
    """Carries a step's plan through compiled layers: torch.compile would guard every field of a dataclass, and
    recompile for a step with another plan.
    """

    def __init__(self, plan: StepPlan | BlockPlan) -> None:
        self.plan = plan


class Taps:
    """Hidden states that enter ``layers``, which a pass leaves side by side in ``states`` [N, layers x hidden size]. As
    many as the model has: what leaves the last."""

    def __init__(self, layers: Sequence[int], states: torch.Tensor) -> None:
        self.layers, self.states = tuple(layers), states
        self._parts = dict(zip(layers, states.tensor_split(len(layers), dim=-1), strict=True))

    def of(self, layers: tuple[int, ...], rows: slice) -> torch.Tensor:
        """Those of some of the layers, [rows, layers x hidden size]."""
        if layers == self.layers:
            return self.states[rows]
        return torch.cat([self._parts[one][rows] for one in layers], dim=-1)

    def take(self, layer: int, hidden: torch.Tensor) -> None:
        if layer in self._parts:
            self._parts[layer].copy_(hidden[0])


class TappedLayer(nn.Module):
    """A decoder layer that shows what enters it and, if it is the ``last``, what leaves it. It has no hook of torch's,
    which compiled layers do not call."""

    def __init__(self, layer: nn.Module, index: int, layers: int) -> None:
        super().__init__()
        self.layer, self.index, self.last = layer, index, index == layers - 1

    def forward(self, hidden_states: torch.Tensor, *args: object, taps: Taps, **how: object) -> torch.Tensor:
        taps.take(self.index, hidden_states)
        output = self.layer(hidden_states, *args, **how)
        if self.last:
            taps.take(self.index + 1, output)
        return output


def _sealed_attention(*args: object, plan: Sealed | None = None, **options: object) -> tuple[torch.Tensor, None]:
    return attention(*args, plan=plan and plan.plan, **options)


class LanguageModel:
    """A causal language model and the few numbers of its shape that a cache needs.

    Args:
        rounded: a CPU may round what linear layers multiply to bfloat16, if it is faster at that.

    Attributes:
        model: the transformers model itself.
        layers, kv_heads, head_dim, kv_vectors: shape of its keys and values (``ModelShape``).
        query_groups: query heads that share a KV head.
        vocabulary: width of its logits.
        padding: logits that it has no weights for (see ``with_vocabulary``); if negative, logits that are dropped.
        context_length: most positions it was made for; with LongRoPE, those of its shorter texts.
        device: where tokens go in and logits come out.
        layer_devices: of each layer's attention, where its keys and values are kept; None: it has none.
        compiled: whether its layers are compiled by torch.compile.
        compile_failure: why they are not although that was asked for.
        first_position: the number that its first token has among its embeddings of positions.
        windows: of each layer the positions that a token sees; None: all, 0: it has no attention.
        kv_sources: of layers that read another's keys and values, the other.
        recurrent: its recurrent layers; None: it has none.
        own_attention: why it keeps its own attention, in a clause; None: it has the lab's.
        other_cache, other_attention: why kernels for keys and values by position, and such for full attention, cannot
            compute it; None: they can.
        heads: those that draft from its hidden states and were loaded with it, by kind.
        expert_counter: of a mixture of experts that can be counted (``lab.models.experts``).
        uncounted: each token is routed to experts that cannot be counted: the weights that a pass reads are unknown.
        notes: sentences on how it was loaded, for who runs it.

    Raises:
        UnsupportedModelError: see ``refuse_unsupported``.
    """

    notes: tuple[str, ...] = ()

    def __init__(self, model: PreTrainedModel, name: str, *, rounded: bool = False) -> None:
        refuse_unsupported(model.config, name, type(model))
        shape = ModelShape.from_config(model.config)
        self.name = name
        self.model = model.eval()
        self.rounded = rounded
        self.layers = shape.layers
        self.kv_heads = shape.kv_heads
        self.query_groups = shape.query_groups
        self.head_dim, self.kv_vectors = shape.head_dim, shape.kv_vectors
        self.vocabulary, self.padding = shape.vocabulary, 0
        self.context_length = steady_length(model.config, shape.context_length)
        self.first_position = first_position(model)
        self.context_length -= self.first_position
        self.own_attention = own_attention(model.config, type(model))
        self.windows = [None] * self.layers if self.own_attention else windows_of(model.config)
        self.kv_sources = kv_sources(model.config)
        self.other_cache, self.other_attention = (it(model.config, model) for it in (other_cache, other_attention))
        self.recurrent = recurrent_layers(model)
        if not self.own_attention:
            read_latents(model, (NAME, SEALED_NAME))
        self.compiled = False
        self.compile_failure: str | None = None
        self.heads: dict[str, StateHead] = {}
        if uneven_slots(model.config):
            self.head_dim = -(-numbers_kept(model) // self.kv_heads)
        if self.own_attention:
            self.notes += (
                f"{name} keeps its own attention, which {self.own_attention}. A step computes sequence by sequence.",
            )
        elif self.attends:
            model.set_attn_implementation(NAME)
        if is_dispatched(model):
            gather_hidden_states(model)
        self.device = execution_device(model)
        self.layer_devices = self._devices_of_layers()
        self.expert_counter = ExpertCounter(model) if experts_of(model) else None
        self.uncounted = self.expert_counter is None and bool(expert_modules(model))

    def _devices_of_layers(self) -> list[torch.device | None]:
        found = [self.device] * self.layers
        if is_dispatched(self.model):
            attention = {module.layer_idx: module for module in self.model.modules() if hasattr(module, "layer_idx")}
            found = [execution_device(attention[layer]) for layer in range(self.layers)]
        return [None if window == 0 else device for device, window in zip(found, self.windows, strict=True)]

    @property
    def attends(self) -> bool:
        """False if none of its layers has attention."""
        return any(window != 0 for window in self.windows)

    @property
    def dtype(self) -> torch.dtype:
        return self.model.dtype

    @property
    def head_weights(self) -> int:
        """Weights of the output head, which is computed only for tokens whose logits are wanted."""
        return self.model.get_output_embeddings().weight.numel()

    @property
    def head_bytes(self) -> int:
        """Bytes of the output head as stored."""
        return sum(part.nbytes for part in stored_tensors(self.model.get_output_embeddings().weight))

    @property
    def layer_weights(self) -> int:
        """Weights of the matrices that every token is multiplied by, without the output head and lookup tables. Of a
        linear layer its inputs times its outputs: where weights are quantised, a stored number may hold several. Of
        experts those that a token goes to.
        """
        tables = {module.weight for module in self.model.modules() if isinstance(module, nn.Embedding)}
        left_out = tables | {self.model.get_output_embeddings().weight}
        total = self.experts.weights_per_token if self.experts else 0
        for module in self.model.modules():
            if getattr(module, "weight", None) in left_out:
                continue
            if hasattr(module, "in_features") and not any(module.children()):  # a layer of peft's is also what it wraps
                total += module.in_features * module.out_features
            else:
                total += sum(weight.numel() for weight in module.parameters(recurse=False) if weight.ndim == 2)
        return total

    @property
    def experts(self) -> Experts | None:
        return experts_of(self.model) if self.expert_counter else None

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        plan: StepPlan | BlockPlan,
        keep: torch.Tensor,
        out: torch.Tensor | None = None,
        taps: Taps | None = None,
        parts: Sequence[PassPart] = (),
    ) -> torch.Tensor:
        """One packed forward pass.

        Args:
            token_ids: [N] int64, the new tokens of all sequences.
            positions: [N] int32 or int64.
            plan: which rows are whose (see ``lab.kv_cache.attention_metadata``).
            keep: [K] int32 or int64, the rows whose logits are wanted.
            out: [K, vocabulary] float32, which the logits are written to and which is returned. None: new memory.
            taps: what is to be left there of the hidden states.
            parts: each sequence's part, in the order of their rows, for recurrent layers.

        Returns:
            [K, vocabulary] float32 logits.
        """
        token = current_plan.set(plan)
        try:
            with self.recurrent.computing(parts) if self.recurrent else contextlib.nullcontext():
                return self._forward(token_ids, positions, plan, keep, out, taps)
        finally:
            current_plan.reset(token)

    def _forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        plan: StepPlan | BlockPlan,
        keep: torch.Tensor,
        out: torch.Tensor | None,
        taps: Taps | None,
    ) -> torch.Tensor:
        if self.padding > 0:
            token_ids = token_ids.clamp_max(self.vocabulary - self.padding - 1)
        if self.first_position:
            positions = positions + self.first_position
        model, tapped = self.model, {}
        if taps is not None:
            model, tapped = self._tapped(), {"taps": taps}
        if self.expert_counter:
            self.expert_counter.begin()
        if self.own_attention:
            logits = by_sequence(model, slot_sizes(self), token_ids, positions, plan, keep)
        else:
            logits = model(
                input_ids=token_ids[None],
                # Some steps pass int32: the layers would be recompiled for it while a request waits.
                position_ids=positions[None].long() if self.compiled else positions[None],
                use_cache=False,
                logits_to_keep=keep,
                plan=Sealed(plan) if self.compiled else plan,
                **tapped,
            ).logits[0]
        if self.expert_counter:
            self.expert_counter.end()
        if out is not None:
            own = min(self.vocabulary, logits.shape[-1])
            out[:, :own].copy_(logits[:, :own])  # in place of the conversion to float32 below
            out[:, own:].fill_(-torch.inf)
            return out
        logits = logits.float()
        return F.pad(logits, (0, self.padding), value=-torch.inf) if self.padding else logits

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights that a pass over one token reads.

        Each weight counts once, as stored: a quantised one by its small numbers and its scales. Embedding tables
        are left out, because a token reads one row, unless the table is also the head.
        All experts of a mixture are counted, though a token reads only a few; so are offloaded weights, which
        come from memory or a disk for every pass.
        """
        tables = {id(module.weight) for module in self.model.modules() if isinstance(module, nn.Embedding)}
        head = self.model.get_output_embeddings()
        tables.discard(id(getattr(head, "weight", None)))
        # By identity, so that tied weights count once. A tensor without dimensions only marks a format.
        stored = {id(weight): weight for weight in self.model.state_dict(keep_vars=True).values() if weight.dim()}
        parts = [part for key, weight in stored.items() if key not in tables for part in stored_tensors(weight)]
        return sum(part.nbytes for part in parts)

    def as_compiled(self) -> LanguageModel:
        """The same weights in other modules, which are compiled; this model's own stay as they are."""
        other = copy.copy(self)
        other.model = copy_modules(self.model, {})
        other.compile()
        return other

    def with_vocabulary(self, width: int) -> LanguageModel:
        """The same model with logits as wide as its target's: models of one family pad the vocabulary of their common
        tokenizer differently. A token id past the model's own is never proposed, and is read as its last one.
        """
        other = copy.copy(self)
        other.vocabulary, other.padding = width, self.padding + width - self.vocabulary
        return other

    def _tapped(self) -> PreTrainedModel:
        """The model with layers that show what enters them."""
        if self not in _tapped:
            index = itertools.count()
            _tapped[self] = self.with_layers(lambda layer: TappedLayer(layer, next(index), self.layers)).model
        return _tapped[self]

    def with_layers(self, wrap: Callable[[nn.Module], nn.Module]) -> LanguageModel:
        """The same model with ``wrap(layer)`` in place of each layer."""
        other = copy.copy(self)
        other.model = cut_layers(self.model, self.layers, self.layers)
        layers = layers_of(other.model, self.layers)
        for i, layer in enumerate(layers):
            layers[i] = wrap(layer)
        return other

    def early_layers(self, wanted: int | None) -> int:
        """The number of layers that an early exit computes: ``wanted``, or a quarter of all."""
        return max(1, self.layers // 4) if wanted is None else wanted

    def first(self, layers: int) -> LanguageModel:
        """The model cut off after its first ``layers`` layers, followed by its final norm and its head: the same
        weights, and the same place for keys and values.
        """
        shorter = copy.copy(self)
        shorter.model = cut_layers(self.model, self.layers, layers)
        shorter.name, shorter.layers, shorter.windows = f"{self.name}[:{layers}]", layers, self.windows[:layers]
        shorter.layer_devices = self.layer_devices[:layers]
        shorter.kv_sources = {layer: source for layer, source in self.kv_sources.items() if layer < layers}
        shorter.recurrent = self.recurrent and self.recurrent.first(layers)
        return shorter

    @torch.inference_mode()
    def compile(self, backend: str | Callable = "inductor") -> None:
        """Compile the code that all layers share ("regional" compilation), and try it on one token, then on two.

        The second try generates code for any number. Attention is not compiled: it is called between two compiled
        halves. On failure ``compile_failure`` says why, and nothing is compiled. ``backend``: torch.compile's.

        Raises:
            UnsupportedModelError: see ``layers_of``.
        """
        if self.recurrent or self.own_attention:
            part = "recurrent layers, which are" if self.recurrent else "its own attention, which is"
            self.compile_failure = f"it has {part} computed sequence by sequence"
            return
        layers = layers_of(self.model, self.layers)
        for layer in layers:
            layer.compile(backend=backend, dynamic=True)
        AttentionInterface.register(SEALED_NAME, torch.compiler.disable(_sealed_attention))
        self.model.set_attn_implementation(SEALED_NAME)
        self.compiled = True
        try:
            for count in (1, 2):
                rows = torch.arange(count, device=self.device)
                mask = rows <= rows[:, None]
                group = Group(slice(0, count), 1, mask.repeat(self.query_groups, 1)[None, None], None, rows[None])
                plan = StepPlan((group,), None, None)
                self.forward(rows, rows, plan, rows)
        except Exception as error:  # of many kinds, from the compiler or from the one it calls
            log.warning("the layers of %s could not be compiled", self.name, exc_info=True)
            self.compile_failure = error_summary(getattr(error, "inner_exception", error))
            for layer in layers:
                layer._compiled_call_impl = None
            self.model.set_attn_implementation(NAME)
            self.compiled = False

    def identity(self) -> int:
        """A number that changes when the weights, their dtype or the active adapters do.

        It looks at addresses and version counters, not at the numbers themselves, and at what peft's layers say of
        their adapters. An adapter that is switched on or off in some other way may escape it, and so may a change of
        offloaded weights.
        """
        weights, adapters = [], []
        for module in self.model.modules():  # once, and no names: this is asked of every request
            weights += [
                (part.dtype, part.data_ptr(), 0 if part.is_inference() or part.is_meta else part._version)
                for weight in module._parameters.values()
                if weight is not None
                for part in stored_tensors(weight)
            ]
            # Properties of peft's layers, looked for in the class: a module takes long to say that it has no such
            # attribute. (A model of transformers has methods of these names.)
            if all(isinstance(getattr(type(module), name, None), property) for name in ADAPTED):
                adapters.append((tuple(module.active_adapters), module.disable_adapters))
        return hash((*weights, None, *adapters))

    @contextlib.contextmanager
    def stock_attention(self) -> Iterator[PreTrainedModel]:
        """The model with transformers' own attention, for calling ``generate`` on it.

        The engine cannot run in the meantime.
        """
        if self.own_attention or not self.attends:
            yield self.model
            return
        plugged_in = self.model.config._attn_implementation
        # Torch's attention never shows the scores, which these change.
        scores = self.other_attention and ("softcap" in self.other_attention or "sinks" in self.other_attention)
        self.model.set_attn_implementation("eager" if scores else "sdpa")
        try:
            yield self.model
        finally:
            self.model.set_attn_implementation(plugged_in)


_tapped: WeakKeyDictionary[LanguageModel, PreTrainedModel] = WeakKeyDictionary()
