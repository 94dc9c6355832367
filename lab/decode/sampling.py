"""From logits to a distribution, and from a distribution to a token."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lab.config import SamplingParams
from lab.native import sampling as in_c
from lab.transfer import on_device


def distribution(logits: torch.Tensor, sampling: SamplingParams | Sequence[SamplingParams]) -> torch.Tensor:
    """The distribution that tokens are drawn from: temperature, then top-k, then top-p.

    Speculation applies these to draft and target alike, before p and q are compared.
    Greedy decoding draws nothing; its distribution is the plain softmax, for display.

    Args:
        logits: [..., vocabulary] float32.
        sampling: for all rows, or one for each row of [rows, vocabulary].

    Returns:
        [..., vocabulary] float32, each row summing to 1.
    """
    rows = [sampling] if isinstance(sampling, SamplingParams) else sampling
    device, vocabulary = logits.device, logits.shape[-1]

    def column(values: list[float]) -> torch.Tensor:
        column = on_device(torch.tensor(values, dtype=torch.float32), device)
        return column[:, None] if len(values) > 1 else column

    temperatures = [1.0 if row.greedy else row.temperature for row in rows]
    p = (logits if all(t == 1 for t in temperatures) else logits / column(temperatures)).softmax(-1)
    if all(row.greedy or (row.top_k == 0 and row.top_p == 1) for row in rows):
        return p
    # Stable: of equally likely tokens at the border the lowest ids stay, as in C.
    ordered, order = p.sort(dim=-1, descending=True, stable=True)
    top_k = column([vocabulary if row.greedy or row.top_k == 0 else row.top_k for row in rows])
    ordered = ordered.masked_fill(torch.arange(vocabulary, device=device) >= top_k, 0.0)
    # A token stays if those before it sum to less than top_p of what top-k left: the first always stays.
    top_p = column([torch.inf if row.greedy or row.top_p == 1 else row.top_p for row in rows])
    before = ordered.cumsum(-1) - ordered
    ordered = ordered.masked_fill(before >= top_p * ordered.sum(-1, keepdim=True), 0.0)
    return torch.zeros_like(p).scatter(-1, order, ordered / ordered.sum(-1, keepdim=True))


def draw(weights: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    """Draw from unnormalised weights by inverting their cumulative sum: one uniform number per draw.

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
    return token.clamp_max(weights.shape[-1] - 1)  # needed only where weights are not finite


def sample(
    logits: torch.Tensor, sampling: Sequence[SamplingParams], u: torch.Tensor | None, *, native: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Each row's distribution and its next token: drawn, or the most likely one where the row is greedy.

    Args:
        logits: [rows, vocabulary] float32.
        u: [rows] float64 in [0, 1). None: nothing is drawn, and the tokens are the most likely ones.
        native: the step in C computes the model, so C does this too.

    Returns:
        [rows, vocabulary] float32 as from ``distribution``, and [rows] int64.

    Raises:
        MemoryError: C could not allocate what it needs.
    """
    if native:
        return in_c.sample(logits, sampling, u)
    p = distribution(logits, sampling)
    greedy = [row.greedy for row in sampling]
    if u is None or all(greedy):
        return p, logits.argmax(-1)
    drawn = draw(p, u)
    if not any(greedy):
        return p, drawn
    return p, torch.where(on_device(torch.tensor(greedy), p.device), logits.argmax(-1), drawn)
