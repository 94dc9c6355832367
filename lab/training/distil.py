"""Distilling a draft: it learns the target's distribution instead of the text's next token.

In speculative sampling a proposal drawn from q is accepted with probability
sum_x min(p(x), q(x)), the mass that both distributions share (Leviathan et al.,
2211.17192, theorem 3.5 and corollary 3.6): one minus their total variation distance.
The draft is therefore trained on that: at first together with the forward KL, whose
gradient does not vanish where the two have little in common (DistillSpec, Zhou et
al., 2310.08461, compares such divergences), and at last alone.
"""

from __future__ import annotations

import torch
from torch.nn import functional as F
from transformers import LlamaForCausalLM

from lab.training.training import Loss

TEMPERATURE = 0.8
"""Both distributions are taken at the temperature at which the pair will mostly be sampled."""

TV_WEIGHT = 3.0
"""Relative to a KL weight of 1: the two terms are of similar size once the draft has learnt something."""


def distillation_loss(target: LlamaForCausalLM, *, kl_weight: float = 1.0) -> Loss:
    """``kl_weight`` KL(p || q) in nats plus ``TV_WEIGHT`` (1 - sum_x min(p, q)), averaged over positions."""
    target = target.eval().requires_grad_(False)
    # As in train(): explicit attention is faster on a CPU, and nothing is kept for a backward pass.
    target.set_attn_implementation("eager" if target.device.type == "cpu" else "sdpa")

    def loss(draft: LlamaForCausalLM, tokens: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            log_p = _log_probabilities(target, tokens)
        log_q = _log_probabilities(draft, tokens)
        p, q = log_p.exp(), log_q.exp()
        divergence = (p * (log_p - log_q)).sum(-1)
        shared = torch.minimum(p, q).sum(-1)
        return (kl_weight * divergence + TV_WEIGHT * (1 - shared)).mean()

    return loss


def _log_probabilities(model: LlamaForCausalLM, tokens: torch.Tensor) -> torch.Tensor:
    """[rows, length, vocabulary] float32, of the token that follows each one but the last."""
    logits = model(input_ids=tokens[:, :-1], use_cache=False).logits
    return F.log_softmax(logits.float() / TEMPERATURE, dim=-1)
