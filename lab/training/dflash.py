"""Training of the DFlash head: blocks that begin at random tokens of a text, all in one pass (2602.06036, section 4).

A block sees the text before its first token and itself, as it will when it is used. Its loss is against the target's
distributions along the text, the later draft tokens' counting less: they matter only if those before are accepted.
"""

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import save_file
from torch.nn import functional as F
from transformers import AttentionInterface, LlamaForCausalLM, Qwen3Config

from lab.models.dflash_head import DFlashConfig, DFlashHead
from lab.models.eagle3_head import usual_layers
from lab.training.distillation import TEMPERATURE, TV_WEIGHT
from lab.training.eagle3 import target_outputs
from lab.training.training import Loss

LAYERS = 2
BLOCK_SIZE = 8
MASK_TOKEN = 0
"""The end of a text, whose embedding no other token of a block has."""
USUAL = 4
"""Draft tokens of every second step's blocks; the others have each number up to the most."""
TEXT_PER_BLOCK = 4
"""Tokens of a text for each block that begins in it."""
DECAY = 0.8
"""From one draft token's weight in the loss to the next one's."""

TextCache = list[tuple[torch.Tensor, torch.Tensor]]
"""Each layer's keys and values of the texts, [rows, kv_heads, length, head_dim]."""


def block_attention(
    module: torch.nn.Module,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: None,
    scaling: float,
    text: TextCache,
    seen: torch.Tensor,
    count: int,
    **_: object,
) -> tuple[torch.Tensor, None]:
    """Attention of blocks of ``count`` tokens, [rows, heads, blocks x count, head_dim], to the positions of the text
    that are ``seen`` [rows, 1, blocks x count, length], and to themselves."""
    groups = q.shape[1] // k.shape[1]
    k, v, keys, values = (x.repeat_interleave(groups, 1) for x in (k, v, *text[module.layer_idx]))
    own = [x.unflatten(2, (-1, count)) for x in (q, k, v)]
    scores = [(q @ keys.transpose(-1, -2)).masked_fill(~seen, -torch.inf)]
    scores.append((own[0] @ own[1].transpose(-1, -2)).flatten(2, 3))
    weights = (torch.cat(scores, dim=-1) * scaling).softmax(-1, dtype=torch.float32).to(v.dtype)
    length = keys.shape[2]
    out = weights[..., :length] @ values
    out = out + (weights[..., length:].unflatten(2, (-1, count)) @ own[2]).flatten(2, 3)
    return out.transpose(1, 2).contiguous(), None


AttentionInterface.register("blocks", block_attention)


def new_head(target: LlamaForCausalLM, *, layers: int = LAYERS) -> DFlashHead:
    """A head over the target's embeddings and output head, begun from its last layers."""
    sizes = {key: value for key, value in target.config.to_dict().items() if key not in ("model_type", "architectures")}
    layer = Qwen3Config(**sizes | {"num_hidden_layers": layers, "tie_word_embeddings": False})
    layer._attn_implementation = "blocks"
    config = DFlashConfig(
        layer=layer,
        draft_vocab_size=layer.vocab_size,
        target_hidden_size=layer.hidden_size,
        target_layers=usual_layers(target.config.num_hidden_layers),
        block_size=BLOCK_SIZE,
        mask_token_id=MASK_TOKEN,
    )
    tables = (copy.deepcopy(module).requires_grad_(False) for module in (target.get_input_embeddings(), target.lm_head))
    head = DFlashHead(config, *tables).float()
    last = target.model.layers[-layers:].float()
    with torch.no_grad():
        for block, own in zip(head.blocks, last, strict=True):
            block.load_state_dict(own.state_dict(), strict=False)  # but for the norms of queries and keys
        head.hidden_norm.load_state_dict(last[0].input_layernorm.state_dict())
        head.norm.load_state_dict(target.model.norm.state_dict())
        head.fc.weight.normal_(std=0.02 / layer.hidden_size**0.5)
        head.fc.weight[:, -layer.hidden_size :] += torch.eye(layer.hidden_size)
    return head


def export_head(
    head: DFlashHead, folder: Path, *, architecture: str = "DFlashDraftModel", more: Mapping[str, object] = {}
) -> None:
    """Write a head as z-lab's are, in bfloat16, without what is the target's (``lab.models.head_files``). ``more``: of
    its ``dflash_config``."""
    config, layer = head.config, head.config.layer
    folder.mkdir(parents=True, exist_ok=True)
    weights = {
        name.replace("blocks.", "layers."): weight.bfloat16().contiguous()
        for name, weight in head.named_parameters()
        if "embed" not in name and "lm_head" not in name
    }
    save_file(weights, folder / "model.safetensors")
    given = {key: value for key, value in layer.to_dict().items() if not key.startswith("_")} | {
        "architectures": [architecture],
        "dtype": "bfloat16",
        "rope_theta": layer.rope_parameters["rope_theta"],
        "block_size": config.block_size,
        "dflash_config": {
            "mask_token_id": config.mask_token_id,
            "target_layer_ids": [one - 1 for one in config.target_layers],  # whose outputs they are
            **more,
        },
    }
    (folder / "config.json").write_text(json.dumps(given, indent=2, sort_keys=True) + "\n", "utf-8")


def block_loss(target: LlamaForCausalLM, *, kl_weight: float = 1.0) -> Loss:
    """``kl_weight`` KL(p || q) plus ``TV_WEIGHT`` (1 - sum_x min(p, q)) of the head's draft tokens at temperature 0.8,
    the weighted mean over a block's."""
    target = target.eval().requires_grad_(False)
    target.set_attn_implementation("sdpa")

    def loss(head: DFlashHead, tokens: torch.Tensor) -> torch.Tensor:
        most = head.config.block_size - 1
        usual = torch.rand(()) < 0.5
        count = min(USUAL, most) if usual else int(torch.randint(1, most + 1, ()))
        anchors = random_anchors(tokens.shape[1] - 1, count, rows=len(tokens)).to(tokens.device)
        drafted = draft_blocks(target, head, tokens, anchors, count)
        weights = DECAY ** torch.arange(count, device=tokens.device)
        each = kl_weight * drafted.divergence + TV_WEIGHT * (1 - drafted.shared)
        return (each * weights).mean() / weights.mean()

    return loss


def random_anchors(length: int, count: int, *, rows: int) -> torch.Tensor:
    """Positions at which blocks of ``count`` draft tokens begin, ascending, [rows, length // TEXT_PER_BLOCK]; none
    without a token before it."""
    return torch.rand(rows, length - count).argsort(-1)[:, : max(1, length // TEXT_PER_BLOCK)].sort(-1).values + 1


class Drafted(NamedTuple):
    """Log-probabilities of each draft token of each block, by target and head, [rows, blocks, count, vocabulary]."""

    log_p: torch.Tensor
    log_q: torch.Tensor

    @property
    def divergence(self) -> torch.Tensor:
        """KL(p || q) in nats."""
        return (self.log_p.exp() * (self.log_p - self.log_q)).sum(-1)

    @property
    def shared(self) -> torch.Tensor:
        """The probability that it is accepted, sum_x min(p, q)."""
        return torch.minimum(self.log_p.exp(), self.log_q.exp()).sum(-1)


def draft_blocks(
    target: LlamaForCausalLM, head: DFlashHead, tokens: torch.Tensor, anchors: torch.Tensor, count: int
) -> Drafted:
    """Blocks that begin at ``anchors`` [rows, blocks] of ``tokens`` [rows, length] int64, at least ``count`` from their
    end."""
    with torch.no_grad():
        states, log_p = target_outputs(target, tokens, head.config.target_layers)
        after = anchors[..., None] + torch.arange(count, device=tokens.device)
        log_p = log_p[torch.arange(len(tokens), device=tokens.device)[:, None, None], after]
    places = torch.arange(tokens.shape[1], device=tokens.device)
    text = head.keys_and_values(head.fuse(states), places.expand(len(tokens), -1))
    text = [(k.transpose(1, 2), v.transpose(1, 2)) for k, v in text]
    blocks = head.block(tokens.gather(1, anchors), count)
    width = blocks.shape[-1]
    positions = (anchors[..., None] + torch.arange(width, device=tokens.device)).flatten(1)
    seen = (places < anchors[..., None]).repeat_interleave(width, 1)[:, None]
    out = head(blocks.flatten(1), positions, text=text, seen=seen, count=width).unflatten(1, (-1, width))
    before = tokens[torch.arange(len(tokens), device=tokens.device)[:, None, None], after]
    logits = head.after(head.logits(out[:, :, -count:]), before)
    return Drafted(log_p, F.log_softmax(logits.float() / TEMPERATURE, dim=-1))
