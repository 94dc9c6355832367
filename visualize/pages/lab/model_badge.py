"""The models' names, sizes and training text, beside the prompt; and a word where the prompt is unlike that."""

import functools
import json
from collections.abc import Mapping
from html import escape

from tokenizers import Tokenizer

from lab.config import EMBEDDED_TARGET
from lab.models.loader import EMBEDDED_DRAFTS, WEIGHTS
from lab.registry import EMBEDDED, Pair

USUAL = 0.27
UNLIKE = 0.35
"""Tokens per character: the median of 300 passages of the books, and what 98% of them stay below. German and code have
about 0.5."""
USUAL_BITS_PER_SECOND = 100e6
"""Of a household's connection: what the estimate before a download says it goes by."""
SHORT = 12
"""Characters of a prompt that are too few to tell."""


def badge(pair: str, pairs: Mapping[str, Pair], prompt: str, *, talks: bool = False, templated: bool = False) -> str:
    """HTML: the models of ``pair``, one of ``pairs``, with sizes, and whether ``prompt`` is unlike their training text.

    Args:
        templated: its target is known to have a chat template.
        talks: and the prompt goes through it.
    """
    if pair not in EMBEDDED or pairs.get(pair, EMBEDDED[pair]).target:
        completes = "it continues your text" if templated else "no chat template, it continues your text"
        chosen = pairs.get(pair)
        label = f"<b>{escape(chosen.label)}</b>" if chosen else "Your models"
        how = "your messages go through its chat template" if talks else completes
        return f"<p>{label}: {how}.{_sizes(chosen)}</p>"
    target, draft = (_parameters(folder) for folder in ("target", EMBEDDED_DRAFTS[pair]))
    books = "Trained on old children's books"
    learned = f"{books}." if pair == "matched" else f"{books}; the draft on Python code."
    sizes = f"{target} parameters, draft {draft}"
    said = f"<p><b>{EMBEDDED_TARGET}</b> {sizes}. {learned} They continue stories; they do not answer questions.</p>"
    density = len(_tokenizer().encode(prompt).ids) / max(1, len(prompt))
    if len(prompt) < SHORT or density < UNLIKE:
        return said
    unlike = f"Unlike those books ({density:.2f} tokens per character, not {USUAL}): expect nonsense."
    return f'{said}<p class="unlike">{unlike}</p>'


def _sizes(pair: Pair | None) -> str:
    """The room that a pair from a hub takes, and the time until it is there."""
    if pair is None:
        return " Run loads them first; Stop cancels."
    if not pair.disk_bytes:
        return ""
    takes = f" {pair.disk_bytes / 1e9:.1f} GB on disk, {pair.memory_bytes / 1e9:.1f} GB in memory."
    if pair.is_here:
        return f"{takes} Already on this machine."
    minutes = pair.disk_bytes * 8 / USUAL_BITS_PER_SECOND / 60
    return f"{takes} Run fetches them first, about {minutes:.0f} min at 100 Mbit/s; Stop cancels."


@functools.cache
def _tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(WEIGHTS / "target" / "tokenizer.json"))


@functools.cache
def _parameters(folder: str) -> str:
    models = json.loads((WEIGHTS / "card.json").read_text("utf-8"))["models"]
    return f"{models[folder]['parameters'] / 1e6:.1f}M"
