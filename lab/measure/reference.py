"""Recorded reference runs: what lessons, Compare and Claims measured on a known machine, beside what is measured here.

``python -m docs.record_reference`` writes one file per machine. Whatever is drawn from it names the machine.
"""

import functools
import gzip
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "docs" / "bench"


@dataclass(frozen=True)
class Reference:
    """A machine's record.

    Attributes:
        machine: as ``describe_machine`` says.
        busy: the look at the machine before the recording found it so.
        compare: tokens per second of each repeat, by setting, with Compare's initial inputs.
        lessons: by name: ``figures``, as the preset gives them, and as the page shows them ``panels`` and ``played``.
        claims: measured ones by id, each as the page shows it.
    """

    machine: Mapping[str, Any]
    busy: bool
    compare: Mapping[str, list[float]]
    lessons: Mapping[str, Mapping[str, Any]]
    claims: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The machine and the day, in words."""
        cores = f"{self.machine['torch_threads']} cores of {self.machine['processor']}"
        hardware = self.machine.get("accelerator") or cores
        day = date.fromisoformat(self.machine["date"])
        return f"{hardware}, {day.day} {day:%B %Y}{', while it was busy' * self.busy}"

    def save(self, path: Path) -> None:
        text = json.dumps(rounded(vars(self)), separators=(",", ":"))
        path.write_bytes(gzip.compress(text.encode(), mtime=0))


def rounded(given: Any) -> Any:
    """The same with six digits per number, as in a record."""
    if isinstance(given, Mapping):
        return {name: rounded(value) for name, value in given.items()}
    if isinstance(given, (list, tuple)):
        return [rounded(value) for value in given]
    return float(f"{given:.6g}") if isinstance(given, float) else given


@functools.cache
def reference(name: str = "cpu") -> Reference | None:
    """The record of this name; None without its file."""
    path = FOLDER / f"reference-{name}.json.gz"
    return Reference(**json.loads(gzip.decompress(path.read_bytes()))) if path.exists() else None
