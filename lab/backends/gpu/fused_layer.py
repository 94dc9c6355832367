"""A Llama layer in six launches instead of forty.

A step of one token reads every weight once, and there is hardly anything to compute between two of its matrix
products. What a GPU then waits for is the next launch, even within a CUDA graph: a finished kernel has to drain from
the multiprocessors before the next one can fill them. So matrices with the same input are merged into one (query, key
and value; gate and up), as in vLLM's layers, and a product is fused with what surrounds it
(``lab.backends.gpu.fused_product``).
"""

import torch
from torch import nn

from lab.backends.gpu.fused_kernels import rms_norm, rotate
from lab.backends.gpu.fused_product import add_product, gated_product, normed_product
from lab.backends.gpu.launching import launching
from lab.backends.gpu.paged_attention import attend_by_kernels
from lab.backends.interface import KernelError
from lab.kv_cache.attention_metadata import BlockPlan, StepPlan
from lab.kv_cache.formats import PlainLayer
from lab.models.language_model import LanguageModel
from lab.models.support import is_plain, unlike_llama
from lab.util.device_memory import release_cached_memory


def fused(model: LanguageModel) -> LanguageModel:
    """The same weights with fused layers and a final norm in one launch; the model itself if it has them already, or no
    layers like a Llama's."""
    if any(isinstance(module, FusedLayer) for module in model.model.modules()) or unlike_llama(
        model.model, model.layers
    ):
        return model
    other = model.with_layers(FusedLayer)
    other.model.model.norm = FusedNorm(other.model.model.norm)  # what is above the layers is a copy
    return other


def merge(model: LanguageModel) -> None:
    """Merge the matrices of fused layers that are not merged yet: before the first step, and after weights or adapters
    have changed."""
    copied = [module.merge() for module in model.model.modules() if isinstance(module, FusedLayer)]
    if any(copied) and model.device.type == "cuda":
        # The allocator keeps the memory of each part by itself, and nothing larger than a part fits into it.
        release_cached_memory()


class FusedLayer(nn.Module):
    """Computes what ``layer`` does if kernels compute attention; otherwise ``layer`` computes it itself.

    Its weights are those of ``layer``, whose matrices become parts of larger ones: there is no second copy.

    Args:
        layer: a decoder layer of transformers, of a family that ``lab.models.support`` names.
    """

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer
        self._merged: tuple[Merged, Merged] | None = None

    def merge(self) -> bool:
        """Merge the layer's matrices. Nothing is copied if they are merged already, even with other numbers in them.

        Returns:
            Whether anything was copied, and so memory given back.
        """
        attention, mlp = self.layer.self_attn, self.layer.mlp
        together = (attention.q_proj, attention.k_proj, attention.v_proj), (mlp.gate_proj, mlp.up_proj)
        added = attention.o_proj, mlp.down_proj
        if not all(map(is_plain, (*together[0], *together[1], *added))) or any(one.bias is not None for one in added):
            self._merged = None
        elif self._merged is None or not all(map(Merged.holds, self._merged, together)):
            self._merged = tuple(map(Merged, together))
            return True
        return False

    def forward(
        self,
        hidden_states: torch.Tensor,
        *,
        position_embeddings: tuple[torch.Tensor, torch.Tensor],
        plan: StepPlan | BlockPlan | None = None,
        **options: object,
    ) -> torch.Tensor:
        """[1, N, hidden] -> [1, N, hidden], which may be the same memory.

        Raises:
            KernelError: see there. New keys and values may have been stored or not; storing them again is safe.
        """
        if self._merged is None or not isinstance(plan, BlockPlan):
            return self.layer(hidden_states, position_embeddings=position_embeddings, plan=plan, **options)
        cosine, sine = (angles[0] for angles in position_embeddings)
        with launching(hidden_states):
            return self._fused(hidden_states[0], cosine, sine, plan)[None]

    def _fused(self, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor, plan: BlockPlan) -> torch.Tensor:
        layer, attention, mlp = self.layer, self.layer.self_attn, self.layer.mlp
        in_qkv, in_gate_up = self._merged
        dim = attention.head_dim
        heads, kv_heads = (projection.out_features // dim for projection in (attention.q_proj, attention.k_proj))
        norms, epsilon = None, 0.0
        if hasattr(attention, "q_norm"):
            norms, epsilon = (attention.q_norm.weight, attention.k_norm.weight), attention.q_norm.variance_epsilon
        # What is quantised is stored by a kernel of its own.
        storage = plan.storage.layers[attention.layer_idx]
        plain = storage if isinstance(storage, PlainLayer) else None

        qkv = normed_product(x, *_norm(layer.input_layernorm), in_qkv.weight, in_qkv.bias)
        rotate(qkv, heads, kv_heads, cosine, sine, norms, epsilon, plain, plan.write)
        query, key, value = qkv.view(len(x), -1, dim).split((heads, kv_heads, kv_heads), 1)
        stored = plain is not None
        attended = attend_by_kernels(attention.layer_idx, query, key, value, plan, attention.scaling, stored=stored)
        x = add_product(x, attended.view(len(x), -1), attention.o_proj.weight)
        between = gated_product(x, *_norm(layer.post_attention_layernorm), in_gate_up.weight)
        return add_product(x, between, mlp.down_proj.weight)


class FusedNorm(nn.Module):
    """The final RMSNorm, ``norm``: one launch instead of transformers' eight, which take 1% of a Llama 1B's step."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm
        self._failed = False

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """[1, N, hidden] -> [1, N, hidden].

        Raises:
            KernelError: see there. After one, ``norm`` itself computes it.
        """
        if self._failed:
            return self.norm(hidden_states)
        try:
            with launching(hidden_states):
                return rms_norm(hidden_states[0], *_norm(self.norm))[None]
        except KernelError:
            self._failed = True
            raise


class Merged:
    """Matrices with the same input, merged into one. All have a bias, or none; they become views of one tensor.

    Attributes:
        weight: [outputs of all, inputs].
        bias: [outputs of all]; None without.
    """

    def __init__(self, linears: tuple[nn.Linear, ...]) -> None:
        self.weight = _side_by_side(linears, "weight")
        self.bias = None if linears[0].bias is None else _side_by_side(linears, "bias")
        self._addresses = _addresses(linears)

    def holds(self, linears: tuple[nn.Linear, ...]) -> bool:
        """True if the parameters are still views of it."""
        return _addresses(linears) == self._addresses


def _side_by_side(linears: tuple[nn.Linear, ...], name: str) -> torch.Tensor:
    parts = [getattr(linear, name).detach() for linear in linears]
    with torch.inference_mode(False):
        whole = torch.cat(parts)
    for linear, part in zip(linears, whole.split(list(map(len, parts))), strict=True):
        setattr(linear, name, nn.Parameter(part, requires_grad=False))
    return whole


def _addresses(linears: tuple[nn.Linear, ...]) -> list[int]:
    return [parameter.data_ptr() for linear in linears for parameter in linear.parameters()]


def _norm(module: nn.Module) -> tuple[torch.Tensor, float]:
    return module.weight, module.variance_epsilon
