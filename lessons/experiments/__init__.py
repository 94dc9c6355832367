"""What a lesson can measure: one file a kind of experiment."""

from __future__ import annotations

from typing import get_args

from lessons.experiments.base import Experiment, Load, Measured, Part, Watch, Work
from lessons.experiments.batches import Batches
from lessons.experiments.formats import Formats
from lessons.experiments.growth import Growth
from lessons.experiments.models import Models
from lessons.experiments.rules import Rules
from lessons.experiments.runs import Runs

__all__ = [
    "WORKED_OUT",
    "Batches",
    "Experiment",
    "Formats",
    "Growth",
    "Load",
    "Measured",
    "Models",
    "Part",
    "Preset",
    "Rules",
    "Runs",
    "Watch",
    "Work",
]


class Preset(Part):
    """The experiments of a lesson, in the order in which they are made. A kind has its figures under its name."""

    models: Models | None = None
    runs: Runs | None = None
    growth: Growth | None = None
    formats: Formats | None = None
    batches: Batches | None = None
    rules: Rules | None = None

    @property
    def experiments(self) -> dict[str, Experiment]:
        found = {name: getattr(self, name) for name in type(self).model_fields}
        return {name: experiment for name, experiment in found.items() if experiment is not None}


WORKED_OUT = tuple(
    f"{name}." for name, field in Preset.model_fields.items() if get_args(field.annotation)[0].arithmetic
)
"""How the names of figures begin that no machine has measured."""
