"""From logits to a distribution, and from a distribution to a token."""

from __future__ import annotations

import torch

from lab.config import SamplingParams


def distribution(logits: torch.Tensor, sampling: SamplingParams) -> torch.Tensor:
    """The distribution that tokens are drawn from: temperature, then top-k, then top-p.

    Speculation applies it to draft and target alike, before p and q are compared.
    Greedy decoding draws nothing; its distribution is the plain softmax, for reading.

    Args:
        logits: [..., vocabulary] float32.

    Returns:
        [..., vocabulary] float32, each row summing to 1.
    """
    if sampling.greedy:
        return logits.softmax(-1)
    logits = logits / sampling.temperature
    if 0 < sampling.top_k < logits.shape[-1]:
        weakest = logits.topk(sampling.top_k, dim=-1).values[..., -1:]
        logits = logits.masked_fill(logits < weakest, -torch.inf)
    probabilities = logits.softmax(-1)
    if sampling.top_p < 1:
        ordered, order = probabilities.sort(dim=-1, descending=True)
        # A token stays while those before it have not reached top_p: the first always stays.
        beyond = ordered.cumsum(-1) - ordered >= sampling.top_p
        probabilities = probabilities.masked_fill(beyond.scatter(-1, order, beyond), 0.0)
        probabilities = probabilities / probabilities.sum(-1, keepdim=True)
    return probabilities


def draw(weights: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    """Draw from unnormalised weights by inverting their cumulative sum: one uniform a draw.

    Args:
        weights: [..., vocabulary], not negative, at least one above 0.
        u: [...] float64 in [0, 1).

    Returns:
        [...] int64. Never a token of weight 0.
    """
    # float64: in float32 the sum over a large vocabulary rounds small weights away.
    cumulative = weights.double().cumsum(-1)
    total = cumulative[..., -1]
    point = torch.minimum(u * total, torch.nextafter(total, torch.zeros_like(total)))
    token = torch.searchsorted(cumulative, point[..., None], right=True)[..., 0]
    return token.clamp_max(weights.shape[-1] - 1)  # only weights that are not finite get that far
