"""Training of the EAGLE-3 head, unrolled as it will be used ("training-time test", 2503.01840, section 3.2).

In step 1 each position has the target's hidden states, in step 2 the head's own output of step 1 for the position
before, and so on. A step's query attends to step 1 up to where the head went on alone, then to one position of each
step since.
"""

import argparse
import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch.nn import functional as F
from transformers import AttentionInterface, LlamaConfig, LlamaForCausalLM

from lab.models.eagle3_head import Eagle3Config, Eagle3Head, usual_layers
from lab.models.head_files import load_head
from lab.models.language_model import LanguageModel
from lab.models.loader import WEIGHTS
from lab.training.distillation import TEMPERATURE, TV_WEIGHT
from lab.training.training import Loss, Parts

DRAFT_VOCABULARY = 2560
"""Of the target's 4,096 tokens: 0.98 of what it writes are among them. All 4,096 would add a quarter to the head's
weights, which each draft token reads."""
STEPS = 3
STEP_WEIGHTS = (1.0, 0.8, 0.64, 0.512)
"""Of the loss: a step counts only if the drafts of the steps before it were accepted."""

Earlier = list[tuple[torch.Tensor, torch.Tensor]]
"""Keys and values of each step so far, [rows, kv_heads, length, head_dim]."""


def unrolled_attention(
    module: torch.nn.Module,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: None,
    scaling: float,
    earlier: Earlier,
    **_: object,
) -> tuple[torch.Tensor, None]:
    """Attention of one step over ``earlier`` ones, to which it adds its own keys and values."""
    step, groups, length = len(earlier), q.shape[1] // k.shape[1], q.shape[2]
    earlier.append((k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)))
    (first_keys, first_values), later = earlier[0], earlier[1:]
    rows = torch.arange(length, device=q.device)
    seen = rows[None, :] <= rows[:, None] - step
    scores = [(q @ first_keys.transpose(-1, -2)).masked_fill(~seen, -torch.inf)]
    # Step i's only visible position lies as far back as it has steps after it.
    shifts = [step - 1 - i for i in range(len(later))]
    scores += [(q * _shifted(keys, by)).sum(-1, keepdim=True) for (keys, _), by in zip(later, shifts, strict=True)]
    weights = (torch.cat(scores, dim=-1) * scaling).softmax(-1, dtype=torch.float32).to(v.dtype)
    out = weights[..., :length] @ first_values
    for i, ((_, values), by) in enumerate(zip(later, shifts, strict=True)):
        out = out + weights[..., length + i, None] * _shifted(values, by)
    return out.transpose(1, 2).contiguous(), None


def _shifted(x: torch.Tensor, by: int) -> torch.Tensor:
    """Position t of the result is position t - ``by`` of ``x`` [rows, heads, length, dim]; the first are zeros."""
    return F.pad(x, (0, 0, by, 0))[:, :, : x.shape[2]] if by else x


AttentionInterface.register("unrolled", unrolled_attention)


def frequent_tokens(parts: Parts, vocabulary: int, count: int) -> torch.Tensor:
    """The ``count`` most frequent tokens of training batches, ascending, [count] int64."""
    counts = sum(share * np.bincount(tokens, minlength=vocabulary) / len(tokens) for tokens, share in parts)
    return torch.from_numpy(np.sort(np.argsort(-counts, kind="stable")[:count]).astype(np.int64))


def new_head(target: LlamaForCausalLM, draft_tokens: torch.Tensor) -> Eagle3Head:
    """A head that can propose ``draft_tokens`` [count] (ascending ids), begun from the target's last layer and head:
    what there reads hidden states does so here, and what reads embeddings begins at random."""
    layer = copy.deepcopy(target.config)
    layer.num_hidden_layers, layer.tie_word_embeddings = 1, False
    layer._attn_implementation = "unrolled"
    config = Eagle3Config(
        layer=layer,
        draft_vocab_size=len(draft_tokens),
        target_hidden_size=layer.hidden_size,
        target_layers=usual_layers(target.config.num_hidden_layers),
    )
    head = Eagle3Head(config, copy.deepcopy(target.get_input_embeddings()).requires_grad_(False)).float()
    hidden, last = layer.hidden_size, target.model.layers[-1].float()
    with torch.no_grad():
        for name in ("q_proj", "k_proj", "v_proj"):
            wide, narrow = getattr(head.midlayer.self_attn, name).weight, getattr(last.self_attn, name).weight
            wide[:, :hidden].normal_(std=narrow.std().item() / 2)
            wide[:, hidden:] = narrow
        head.midlayer.self_attn.o_proj.load_state_dict(last.self_attn.o_proj.state_dict())
        head.midlayer.mlp.load_state_dict(last.mlp.state_dict())
        head.midlayer.hidden_norm.load_state_dict(last.input_layernorm.state_dict())
        head.midlayer.post_attention_layernorm.load_state_dict(last.post_attention_layernorm.state_dict())
        head.norm.load_state_dict(target.model.norm.state_dict())
        head.lm_head.weight.copy_(target.lm_head.weight[draft_tokens])
        head.fc.weight.normal_(std=0.02 / hidden**0.5)
        head.fc.weight[:, -hidden:] += torch.eye(hidden)
        head.d2t.copy_(draft_tokens - torch.arange(len(draft_tokens)))
    return head


def export_head(head: Eagle3Head, folder: Path) -> None:
    """Write a head in the raw dialect, in bfloat16, without the target's embeddings (``lab.models.head_files``)."""
    config, layer = head.config, head.config.layer
    given = _sizes(layer) | {
        "architectures": ["LlamaForCausalLMEagle3"],
        "dtype": "bfloat16",
        "draft_vocab_size": config.draft_vocab_size,
        "target_hidden_size": config.target_hidden_size,
        "norm_before_residual": config.norm_before_residual,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": list(config.target_layers), "use_aux_hidden_state": True},
    }
    _write(head, folder, given)


def export_speculators(head: Eagle3Head, folder: Path, *, target: Path, num_speculative_tokens: int = 4) -> None:
    """Write a head in the speculators dialect, which vLLM serves beside the model at ``target``."""
    config = head.config
    proposal = {"proposal_type": "greedy", "speculative_tokens": num_speculative_tokens, "verifier_accept_k": 1}
    given = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.9.0",
        "dtype": "bfloat16",
        "draft_vocab_size": config.draft_vocab_size,
        "target_hidden_size": config.target_hidden_size,
        "norm_before_residual": config.norm_before_residual,
        "norm_before_fc": config.norm_before_fc,
        "eagle_aux_hidden_state_layer_ids": list(config.target_layers),
        "transformer_layer_config": _sizes(config.layer),
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [proposal],
            "verifier": {"name_or_path": str(target), "architectures": ["LlamaForCausalLM"]},
        },
    }
    _write(head, folder, given, layer="layers.0.")


def _sizes(layer: LlamaConfig) -> dict[str, Any]:
    given = {key: value for key, value in layer.to_dict().items() if not key.startswith("_")}
    return given | {"rope_theta": layer.rope_parameters["rope_theta"]}


def _write(head: Eagle3Head, folder: Path, config: dict[str, Any], layer: str = "midlayer.") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: weight.bfloat16() for name, weight in head.named_parameters() if "embed" not in name}
    t2d = torch.zeros(head.config.layer.vocab_size, dtype=torch.bool)
    t2d[head.target_ids] = True
    weights = {name.replace("midlayer.", layer): weight.contiguous() for name, weight in weights.items()}
    save_file(weights | {"d2t": head.d2t, "t2d": t2d}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", "utf-8")


def unrolled_loss(target: LlamaForCausalLM, *, steps: int = STEPS, kl_weight: float = 1.0) -> Loss:
    """``kl_weight`` KL(p || q) plus ``TV_WEIGHT`` (1 - sum_x min(p, q)) of the head's draft tokens at temperature 0.8,
    the mean over ``STEP_WEIGHTS`` of the steps' means. ``p`` is the target's, over all of its tokens."""
    target = target.eval().requires_grad_(False)
    target.set_attn_implementation("sdpa")

    def loss(head: Eagle3Head, tokens: torch.Tensor) -> torch.Tensor:
        terms = [
            weight * (kl_weight * divergence + TV_WEIGHT * (1 - shared)).mean()
            for weight, (divergence, shared) in zip(STEP_WEIGHTS, unroll(target, head, tokens, steps), strict=False)
        ]
        return sum(terms) / sum(STEP_WEIGHTS[:steps])

    return loss


def unroll(
    target: LlamaForCausalLM, head: Eagle3Head, tokens: torch.Tensor, steps: int
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """For each step, KL(p || q) in nats over the draft tokens and the shared mass sum_x min(p, q), each
    [rows, positions]. ``tokens``: [rows, length + 1] int64."""
    with torch.no_grad():
        states, log_p = target_outputs(target, tokens, head.config.target_layers)
        log_p = log_p[:, 1:, head.target_ids]
        p = log_p.exp()
    following, positions = tokens[:, 1:], torch.arange(tokens.shape[1] - 1, device=tokens.device)[None]
    hidden, earlier, results = head.fuse(states[:, :-1]), [], []
    for step in range(steps):
        out = head(following, hidden, positions, earlier=earlier)
        log_q = F.log_softmax(head.logits(out[:, step:]).float() / TEMPERATURE, dim=-1)
        here, log_here = p[:, step:], log_p[:, step:]
        results.append(((here * (log_here - log_q)).sum(-1), torch.minimum(here, log_q.exp()).sum(-1)))
        hidden = torch.cat([hidden[:, :1], head.fed_back(out)[:, :-1].to(hidden.dtype)], dim=1)
    return results


def target_outputs(
    target: LlamaForCausalLM, tokens: torch.Tensor, layers: tuple[int, ...]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Hidden states that enter ``layers``, [rows, length, layers x H], and log p, [rows, length, vocabulary]."""
    output = target(input_ids=tokens, use_cache=False, output_hidden_states=True)
    states = torch.cat([output.hidden_states[layer] for layer in layers], dim=-1)
    return states, F.log_softmax(output.logits.float() / TEMPERATURE, dim=-1)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m lab.training.eagle3",
        description="Write the embedded target's head in the speculators dialect, for vLLM.",
    )
    parser.add_argument("folder", type=Path, help="where the head goes")
    target = LanguageModel(LlamaForCausalLM.from_pretrained(WEIGHTS / "target"), "the target")
    folder = parser.parse_args().folder
    export_speculators(load_head(WEIGHTS / "eagle3", target, name="eagle3"), folder, target=WEIGHTS / "target")


if __name__ == "__main__":
    main()
