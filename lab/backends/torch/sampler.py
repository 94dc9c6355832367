"""The sampler: from logits to a distribution, and from a distribution to a token.

Lesson 1, decoding one token at a time.
"""

from collections.abc import Callable, Sequence

import torch

from lab.config import SamplingParams
from lab.util.device_copy import on_device

Softmax = Callable[[torch.Tensor], tuple[torch.Tensor, Callable[[], torch.Tensor]]]
"""From [rows, vocabulary] logits to their softmax, and a function that finds each row's likeliest token."""


def distribution(logits: torch.Tensor, sampling: SamplingParams | Sequence[SamplingParams]) -> torch.Tensor:
    """The distribution that tokens are drawn from: temperature, then top-k (Fan et al., 1805.04833), then top-p
    (nucleus sampling: Holtzman et al., 1904.09751, section 3.1).

    Speculation applies these to draft and target alike, before p and q are compared.
    Greedy decoding draws nothing; its distribution is the plain softmax, for display.

    Args:
        logits: [..., vocabulary] float32.
        sampling: for all rows, or one for each row of [rows, vocabulary].

    Returns:
        [..., vocabulary] float32, each row summing to 1.
    """
    rows = [sampling] if isinstance(sampling, SamplingParams) else sampling
    return _truncated(_scaled(logits, rows).softmax(-1), rows)


def _column(values: list[float], device: torch.device) -> torch.Tensor:
    """[rows, 1] float32, a number for each row; [1] for a single row."""
    column = on_device(torch.tensor(values, dtype=torch.float32), device)
    return column[:, None] if len(values) > 1 else column


def _scaled(logits: torch.Tensor, rows: Sequence[SamplingParams]) -> torch.Tensor:
    """Logits over temperature."""
    temperatures = [1.0 if row.greedy else row.temperature for row in rows]
    return logits if all(t == 1 for t in temperatures) else logits / _column(temperatures, logits.device)


def _truncated(p: torch.Tensor, rows: Sequence[SamplingParams]) -> torch.Tensor:
    """Top-k, then top-p."""
    if all(row.greedy or (row.top_k == 0 and row.top_p == 1) for row in rows):
        return p
    device, vocabulary = p.device, p.shape[-1]
    # Stable: of equally likely tokens at the border the lowest ids stay, whatever computes.
    ordered, order = p.sort(dim=-1, descending=True, stable=True)
    top_k = _column([vocabulary if row.greedy or row.top_k == 0 else row.top_k for row in rows], device)
    ordered = ordered.masked_fill(torch.arange(vocabulary, device=device) >= top_k, 0.0)
    # A token stays if those before it sum to less than top_p of what top-k left: the first always stays.
    top_p = _column([torch.inf if row.greedy or row.top_p == 1 else row.top_p for row in rows], device)
    before = ordered.cumsum(-1) - ordered
    ordered = ordered.masked_fill(before >= top_p * ordered.sum(-1, keepdim=True), 0.0)
    return torch.zeros_like(p).scatter(-1, order, ordered / ordered.sum(-1, keepdim=True))


def _softmax(logits: torch.Tensor) -> tuple[torch.Tensor, Callable[[], torch.Tensor]]:
    return logits.softmax(-1), lambda: logits.argmax(-1)


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
    point = u * cumulative[..., -1]  # below the total, also when rounded: u is at most 1 - 2**-53
    token = torch.searchsorted(cumulative, point[..., None], right=True)[..., 0]
    return token.clamp_max(weights.shape[-1] - 1)  # needed only where weights are not finite


def sample(
    logits: torch.Tensor,
    sampling: Sequence[SamplingParams],
    u: torch.Tensor | None,
    softmax: Softmax = _softmax,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Each row's distribution and its next token: drawn, or the most likely one where the row is greedy.

    Args:
        logits: [rows, vocabulary] float32.
        u: [rows] float64 in [0, 1). None: nothing is drawn, and the tokens are the most likely ones.
        softmax: computes the distribution before it is truncated.

    Returns:
        [rows, vocabulary] float32 as from ``distribution``, and [rows] int64.
    """
    # A greedy row is as it was, and the temperature of another does not change which of its tokens is likeliest.
    p, likeliest = softmax(_scaled(logits, sampling))
    p = _truncated(p, sampling)
    greedy = [row.greedy for row in sampling]
    if u is None or all(greedy):
        return p, likeliest()
    drawn = draw(p, u)
    if not any(greedy):
        return p, drawn
    return p, torch.where(on_device(torch.tensor(greedy), p.device), likeliest(), drawn)
