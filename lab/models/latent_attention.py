"""Multi-head latent attention (MLA: DeepSeek-V2, 2405.04434): transformers' own modules, with latents for keys.

A slot holds a token's latent c and the rotary part of its key, which all heads share. A head's key is W_UK c beside
that part, and its value W_UV c; neither is ever computed. Since q . (W_UK c) = (W_UK^T q) . c, the query goes to the
latents ("absorption", section 2.1.2 there); and since the sum of p_j W_UV c_j is W_UV times the sum of p_j c_j, one
vector per head comes back from them. So all heads read one vector per token, as in multi-query attention.
"""

from __future__ import annotations

import functools

import torch
from torch import nn

from lab.models.support import is_plain


def read_latents(model: nn.Module, names: tuple[str, ...]) -> None:
    """Let the model's latent attention, if it has any, hand latents to an attention function of one of these names."""
    for module in model.modules():
        if hasattr(module, "expand_kv") and not hasattr(module, "absorb"):
            module.__class__ = _over_latents(type(module), names)


@functools.cache
def _over_latents(kind: type[nn.Module], names: tuple[str, ...]) -> type[nn.Module]:
    """The same attention over latents. A class, so that a copied module computes with its own weights."""

    def expand_kv(self: nn.Module, latent: torch.Tensor, rotary: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[1, 1, N, rank] and [1, 1, N, rope] -> key and value: of one head, and the value is part of the key."""
        if self.config._attn_implementation not in names:
            return kind.expand_kv(self, latent, rotary)
        key = torch.cat((latent, rotary), dim=-1)
        return key, key

    def absorb(self: nn.Module, query: torch.Tensor) -> torch.Tensor:
        """Query [1, heads, N, nope + rope] -> [1, heads, N, rank + rope]."""
        nope, rotary = query.split((self.qk_nope_head_dim, self.qk_rope_head_dim), dim=-1)
        return torch.cat((nope @ _weights(self)[:, : self.qk_nope_head_dim], rotary), dim=-1)

    def values(self: nn.Module, found: torch.Tensor) -> torch.Tensor:
        """The outputs of attention over latents, [N, heads, rank + rope] -> [N, heads, v_head_dim]."""
        latent = found[..., : self.kv_lora_rank].transpose(0, 1)
        return (latent @ _weights(self)[:, self.qk_nope_head_dim :].transpose(1, 2)).transpose(0, 1)

    return type(kind.__name__, (kind,), {"expand_kv": expand_kv, "absorb": absorb, "values": values})


def _weights(module: nn.Module) -> torch.Tensor:
    """W_UK and W_UV of each head, [heads, nope + v, rank]. A matrix that is quantised, adapted or offloaded says what
    it is if multiplied by the identity."""
    up = module.kv_b_proj
    if is_plain(up) and not up.weight.is_meta:
        weight = up.weight
    else:
        norm = module.kv_a_layernorm.weight  # never quantised
        weight = up(torch.eye(module.kv_lora_rank, dtype=norm.dtype, device=norm.device)).T
    return weight.unflatten(0, (module.num_heads, -1))
