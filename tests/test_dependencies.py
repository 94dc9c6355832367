"""``docs/dependencies.md`` is right about what the lab does not use, and about which versions are pinned."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import torch

from tests.constraints import HEAD, constraints

ROOT = Path(__file__).parents[1]
FILES = [ROOT / "app.py", *(path for room in ("lab", "visualize", "lessons") for path in (ROOT / room).rglob("*.py"))]
CODE = {path: path.read_text("utf-8") for path in FILES}


@pytest.mark.parametrize(
    "use",
    [
        r"\bPIL\b|\bgr\.(Image|Gallery|ImageEditor|ImageSlider|AnnotatedImage|Chatbot|MultimodalTextbox)\b",
        r"torch\.export|AOTI|torch\.jit",
        r"load_checkpoint_(in_model|and_dispatch)",
        r"\bdiskcache\b|DiskCache|set_cache\(",
        r"\bgr\.(DateTime|Dataframe|DataFrame|Audio|DownloadButton)\b",
        r"\btransformers\b.*\bconvert_",
    ],
)
def test_nothing_uses_what_an_advisory_without_a_fix_is_about(use: str) -> None:
    assert [path for path, code in CODE.items() if re.search(use, code)] == []


def test_the_page_names_the_versions_that_are_pinned() -> None:
    page = (ROOT / "docs/dependencies.md").read_text("utf-8")
    for line in (ROOT / "requirements.txt").read_text("utf-8").splitlines():
        name, _, version = line.partition("==")
        for reported in re.findall(rf"^\| {re.escape(name)} (\d[\d.]*) \|", page, re.MULTILINE):
            assert reported == version, line


@pytest.mark.skipif(
    sys.platform != "linux" or sys.version_info[:2] != (3, 11) or torch.version.cuda is not None,
    reason="constraints.txt is written on Linux, by Python 3.11, with torch for CPUs; elsewhere there are others",
)
def test_what_the_packages_bring_is_pinned_as_it_is_installed() -> None:
    assert (ROOT / "constraints.txt").read_text("utf-8").splitlines() == [HEAD, *constraints()]
