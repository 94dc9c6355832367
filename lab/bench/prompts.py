"""Texts to measure on."""

from __future__ import annotations

import json
from pathlib import Path

from lab.config import LabError
from lab.pair.loading import WEIGHTS


def held_out_prompts() -> list[str]:
    """The model card's: beginnings of paragraphs that the embedded pair was not trained on."""
    return json.loads((WEIGHTS / "card.json").read_text("utf-8"))["acceptance"]["prompts"]


def read_text(path: Path) -> str:
    """A UTF-8 file.

    Raises:
        LabError: it cannot be read, is not UTF-8, or holds nothing.
    """
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        raise LabError(f"{path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise LabError(f"{path} is not UTF-8 text. Convert it first.") from error
    if not text.strip():
        raise LabError(f"{path} holds no text.")
    return text
