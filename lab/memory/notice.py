"""Why the figures of a deployment are doubtful, or 0."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from lab.memory.capacity import Deployment
from lab.memory.model_memory import ModelInfo
from lab.util.messages import counted


def deployment_notices(model: ModelInfo, chosen: Deployment, size: Callable[[int], str]) -> Iterator[str]:
    """What the reader must know before believing the numbers, in sentences; mostly nothing. ``size`` formats bytes for
    display."""
    longest, context = chosen.lengths.longest, model.shape.context_length
    full = chosen.cache_bytes <= 0
    if full:
        yield (
            f"The weights take {size(chosen.weight_bytes)}, {size(-chosen.cache_bytes)} more than the "
            f"{size(chosen.usable_bytes)} that are not set aside: they do not fit. Choose weights of fewer bits, a "
            "smaller model or a larger device."
        )
    if longest > context:
        yield f"{model.name} was made for {context:,} positions; the longest sequence here has {longest:,}."
    if not full and not chosen.sequences("contiguous"):
        yield f"Not one sequence of {counted(longest, 'token')} fits into what is left for the cache."
