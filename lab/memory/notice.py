"""Why the figures of a deployment are doubtful, or 0."""

from __future__ import annotations

from collections.abc import Callable

from lab.memory.capacity import Deployment
from lab.memory.models import Model


def notice(model: Model, chosen: Deployment, size: Callable[[int], str]) -> str:
    """What the reader must know before believing the numbers; mostly nothing. ``size`` formats bytes for display."""
    longest, context = chosen.lengths.longest, model.shape.context_length
    if chosen.cache_bytes <= 0:
        return (
            f"The weights take {size(chosen.weight_bytes)}, {size(-chosen.cache_bytes)} more than the "
            f"{size(chosen.usable_bytes)} that are not set aside: they do not fit. Choose weights of fewer bits, a "
            "smaller model or a larger device."
        )
    if longest > context:
        return f"{model.name} was made for {context:,} positions; the longest sequence here has {longest:,}."
    if not chosen.sequences("contiguous"):
        return f"Not one sequence of {longest:,} tokens fits into what is left for the cache."
    return ""
