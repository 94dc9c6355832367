"""The models' names, sizes and training text, beside the prompt; and a word where the prompt is unlike that."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from html import escape

from tokenizers import Tokenizer

from lab.models.loader import EMBEDDED_DRAFTS, EMBEDDED_TARGET, WEIGHTS
from lab.registry import EMBEDDED, Pair

USUAL = 0.27
UNLIKE = 0.35
"""Tokens per character: the median of 300 passages of the books, and what 98% of them stay below. German and code have
about 0.5."""
SHORT = 12
"""Characters of a prompt that are too few to tell."""


def badge(pair: str, pairs: Mapping[str, Pair], prompt: str, *, talks: bool = False, templated: bool = False) -> str:
    """HTML: the models of ``pair``, one of ``pairs``, and whether ``prompt`` is unlike their training text.

    Args:
        templated: its target is known to have a chat template.
        talks: and the prompt goes through it.
    """
    if pair not in EMBEDDED or pairs.get(pair, EMBEDDED[pair]).target:
        completes = "it continues your text" if templated else "no chat template, it continues your text"
        label = pairs[pair].label if pair in pairs else "Your models"
        return f"<p>{escape(label)}: {'your messages go through its chat template' if talks else completes}.</p>"
    target, draft = (_parameters(folder) for folder in ("target", EMBEDDED_DRAFTS[pair]))
    books = "trained on old children's books, "
    learned = f"draft {draft} parameters: {books}" if pair == "matched" else f"{books}draft {draft}, on Python code: "
    said = f"<p><b>{EMBEDDED_TARGET}</b> {target}, {learned}they continue stories and answer no questions.</p>"
    density = len(_tokenizer().encode(prompt).ids) / max(1, len(prompt))
    if len(prompt) < SHORT or density < UNLIKE:
        return said
    unlike = f"Unlike those books ({density:.2f} tokens per character, not {USUAL}): expect nonsense."
    return f'{said}<p class="unlike">{unlike}</p>'


@functools.cache
def _tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(WEIGHTS / "target" / "tokenizer.json"))


@functools.cache
def _parameters(folder: str) -> str:
    models = json.loads((WEIGHTS / "card.json").read_text("utf-8"))["models"]
    return f"{models[folder]['parameters'] / 1e6:.1f}M"
