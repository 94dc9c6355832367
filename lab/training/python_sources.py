"""The mismatched draft's training text: the standard library of the Python that runs the recipe.

Every machine that can run the recipe has it, and code shares little with fairy
tales but the tokenizer.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path

SKIPPED_FOLDERS = {"test", "tests", "idle_test", "idlelib", "site-packages", "dist-packages", "__pycache__"}


def standard_library(folder: Path | None = None) -> list[str]:
    """The sources below ``folder`` (None: this Python's standard library), one text per file, sorted by path.

    Tests and installed packages are left out, and so are files that are not UTF-8.
    """
    folder = folder or Path(sysconfig.get_paths()["stdlib"])
    texts = []
    for file in sorted(folder.rglob("*.py")):
        if SKIPPED_FOLDERS.isdisjoint(file.relative_to(folder).parts):
            try:
                texts.append(file.read_text("utf-8"))
            except UnicodeDecodeError:
                continue
    return [text for text in texts if text.strip()]
