"""A lesson's recorded runs as text that a browser keeps, so that the charts come back after a reload.

What comes back may be anything. It is accepted as the learner's run only if it has exactly the figures that were kept.
"""

from __future__ import annotations

import base64
import gzip
import json
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress

from lab.trace.run import Run, parse_json
from lessons.experiments.base import Measured
from lessons.experiments.runs import figures
from lessons.lesson import Lesson
from visualize.pages.lessons.learner import NONSENSE, Learner
from visualize.pages.lessons.observation import LessonViews, seen

Runs = Mapping[str, Sequence[Run]]
"""Runs by setting, in the order of the repeats."""

MOST_CHARACTERS = 1_000_000
"""Most of a lesson's runs. A browser keeps about five million for a whole site; the course's lessons take up to
400,000."""
MOST_BYTES = 20 * 2**20
"""Most bytes of the same before compression."""
MOST_VALUES = 500_000
"""Most numbers, texts and lists in it."""


def packed(runs: Runs) -> str:
    """All runs by setting, as ``Run.to_json`` writes them, compressed; empty if that is too much to keep."""
    document = {name: [json.loads(run.to_json()) for run in some] for name, some in runs.items()}
    text = base64.b64encode(gzip.compress(json.dumps(document).encode(), 6)).decode()
    return text if len(text) <= MOST_CHARACTERS else ""


def unpacked(text: str) -> dict[str, list[Run]]:
    """The runs in a text that ``packed`` made.

    Raises:
        NONSENSE, zlib.error: it is not such a text.
    """
    if len(text) > MOST_CHARACTERS:
        raise ValueError("more than is ever kept")
    inflate = zlib.decompressobj(zlib.MAX_WBITS | 16)
    plain = inflate.decompress(base64.b64decode(text, validate=True), MOST_BYTES)
    if not inflate.eof:
        raise ValueError("more than was ever packed")
    documents = parse_json(plain, "what was kept", MOST_VALUES)
    return {name: [Run.of(document) for document in some] for name, some in documents.items()}


def remembered(lesson: Lesson, learner: Learner, text: str | None) -> LessonViews | None:
    """Views of the learner's last run. None: there was none, or its recorded runs are missing."""
    if learner.figures is None:
        return None
    measured = {kind: Measured(dict(found)) for kind, found in learner.figures.items()}
    with suppress(*NONSENSE, zlib.error):
        if preset := lesson.front.preset.runs:
            runs = unpacked(text or "")
            if list(runs) != list(preset.settings) or figures(runs) != learner.figures["runs"]:
                return None
            measured["runs"] = Measured(dict(learner.figures["runs"]), runs)
        return seen(lesson, measured)
    return None
