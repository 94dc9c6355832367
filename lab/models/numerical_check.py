"""A model's trial: do its first layers give the same logits with the lab's attention as with their own?"""

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from lab.errors import UnsupportedModelError
from lab.kv_cache.attention_metadata import Group, StepPlan
from lab.kv_cache.kv_cache import new_storage
from lab.kv_cache.recurrent_state import RecurrentState
from lab.models.language_model import LanguageModel
from lab.models.quantization import stored_tensors
from lab.models.recurrent_layers import PassPart
from lab.models.support import refuse_decoding
from lab.util.device_memory import is_out_of_memory
from lab.util.messages import error_summary

LAYERS = 2
TOKENS, CACHED = 9, 4
"""Tokens of each of two texts, and how many of them a first step puts into the cache."""
WINDOW = 3
"""Positions that a layer with a sliding window sees meanwhile."""
TOLERANCES = {torch.float32: 1e-3, torch.bfloat16: 0.05, torch.float16: 0.05}
"""How far logits may be off, relative to the model's own. Rounding is far below, a different attention far above."""


@torch.inference_mode()
def refuse_disagreement(model: LanguageModel) -> None:
    """Refuse a model whose attention is more, or less, than reading each layer's keys and values from a cache.

    The configuration reveals some of that (``lab.models.support``), but transformers has more than a hundred
    architectures: one calls its attention twice per layer, another runs through its layers again. So the first layers
    compute two short texts with the lab's attention, packed, in two steps and with a cache; and with their own
    attention, each text alone and in one pass.

    Raises:
        UnsupportedModelError: the logits differ by more than rounding, or the layers fail.
    """
    kind = type(model.model).__name__
    unlike = f"the layers of {kind} do not say with the lab's attention what they say with their own"
    attention = next((i for i, window in enumerate(model.windows) if window != 0), 0)
    sharing = min(model.kv_sources, default=0)
    first = model.first(min(max(LAYERS, attention + 1, sharing + 1), model.layers))
    texts = torch.arange(2 * TOKENS, device=model.device).view(2, TOKENS) % model.vocabulary
    try:
        with _narrowed(first), first.stock_attention() as own:
            wanted = torch.stack([own(input_ids=text[None], use_cache=False).logits[0, CACHED:] for text in texts])
        with _narrowed(first):
            found = [_cached(first, texts)]
            if first.recurrent:  # of which transformers computes a single token by other code
                found.append(_cached(first, texts, range(CACHED, TOKENS + 1)))
    except Exception as error:  # of any kind: it is the model's own code
        if is_out_of_memory(error):
            raise
        refuse_decoding(model.name, f"{unlike}; its layers cannot be computed so ({error_summary(error)})", error)
    wanted = wanted.float()
    if not wanted.isfinite().all():
        _refuse_not_finite(model)
    for logits in found:
        off = (logits - wanted).norm(dim=-1) / wanted.norm(dim=-1).clamp_min(torch.finfo(torch.float32).tiny)
        # The median, because in a mixture a token near a tie may go to another expert.
        if not off.median() <= TOLERANCES[model.dtype]:
            refuse_decoding(model.name, f"{unlike}; what they say is {off.median():.1%} off")


@contextmanager
def _narrowed(model: LanguageModel) -> Iterator[None]:
    """Within, sliding windows are shorter than the texts."""
    parts = (model.model.config.get_text_config(decoder=True), *model.model.modules()) if any(model.windows) else ()
    holders = [it for it in parts if isinstance(getattr(it, "sliding_window", None), int)]
    before = [(it, it.sliding_window) for it in holders]
    try:
        for it in holders:
            it.sliding_window = min(it.sliding_window, WINDOW)
        yield
    finally:
        for it, window in before:
            it.sliding_window = window


def _refuse_not_finite(model: LanguageModel) -> None:
    """Raises UnsupportedModelError for a model whose first layers say what is not finite, with the likely reason."""
    dtype = str(model.dtype).removeprefix("torch.")
    for weight, values in model.model.named_parameters():
        parts = [part for part in stored_tensors(values) if part.is_floating_point() and not part.is_meta]
        if any(part.isnan().any() for part in parts):
            raise UnsupportedModelError(
                f"{model.name} cannot be decoded: its weight {weight!r} holds NaN, which is no number. Fetch it again, "
                "or choose another copy of the model."
            )
    larger = "'float32'" if model.dtype == torch.bfloat16 else "'bfloat16' or 'float32'"
    advice = "Choose another copy of the model" if model.dtype == torch.float32 else f"Load it with dtype={larger}"
    raise UnsupportedModelError(
        f"{model.name} cannot be decoded in {dtype}: the numbers of its first layers become too large for it and are "
        f"not finite. {advice}."
    )


def _cached(model: LanguageModel, texts: torch.Tensor, ends: Sequence[int] = (CACHED, TOKENS)) -> torch.Tensor:
    """Logits of the last tokens of two texts, by steps up to each of ``ends``: [2, TOKENS] -> [2, TOKENS - CACHED,
    vocabulary] float32."""
    storage = new_storage(model, "auto", texts.numel())
    positions = torch.arange(TOKENS, device=model.device)
    slots = torch.arange(texts.numel(), device=model.device).view(texts.shape)
    states, found = [RecurrentState() for _ in texts], []
    for new in itertools.starmap(slice, itertools.pairwise((0, *ends))):
        rows = torch.arange(texts[:, new].numel(), device=model.device)
        seen = positions[: new.stop] <= positions[new, None]
        mask = seen.repeat(model.query_groups, 1).expand(2, 1, -1, -1)
        group = Group(slice(0, len(rows)), 2, mask, slots[:, : new.stop].flatten(), positions[new].expand(2, -1))
        plan = StepPlan((group,), slots[:, new].flatten(), storage)
        count = new.stop - new.start
        parts = [PassPart(slice(i * count, (i + 1) * count), new.start, 0, state) for i, state in enumerate(states)]
        logits = model.forward(texts[:, new].flatten(), positions[new].repeat(2), plan, rows, parts=parts)
        found.append(logits.unflatten(0, (2, -1)))
    return torch.cat(found[1:], dim=1)
