"""Importing Gradio without its type stubs."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def no_stubs() -> Iterator[None]:
    """Whenever Gradio is imported, it parses the sources of all its components and writes type stubs beside them: 1.2
    of the 3.0 s of CPU time that the import takes. It leaves out those whose file is not known: here, all."""
    known = inspect.getfile

    def getfile(of: Any) -> str:
        if isinstance(of, type) and of.__module__.startswith("gradio."):
            raise OSError("not to be known")
        return known(of)

    inspect.getfile = getfile
    try:
        yield
    finally:
        inspect.getfile = known
