"""The experiments of a lesson's preset, and how certain their figures are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from lessons.experiments.base import Experiment, Part
from lessons.experiments.batches import Batches
from lessons.experiments.caches import Formats, Models
from lessons.experiments.counts import Roofs, Turns
from lessons.experiments.growth_experiments import Growth
from lessons.experiments.invariance import Company
from lessons.experiments.kept import Kept
from lessons.experiments.noise import Noise
from lessons.experiments.numerics import EightBits, Temperatures
from lessons.experiments.rules import Rules
from lessons.experiments.runs import Runs
from lessons.experiments.traffic import Traffic


class Preset(Part):
    """The experiments of a lesson, in the order in which they run. The figures of a kind are under its name."""

    models: Models | None = None
    roofs: Roofs | None = None
    runs: Runs | None = None
    growth: Growth | None = None
    formats: Formats | None = None
    batches: Batches | None = None
    rules: Rules | None = None
    turns: Turns | None = None
    temperatures: Temperatures | None = None
    eight_bits: EightBits | None = None
    company: Company | None = None
    kept: Kept | None = None
    noise: Noise | None = None
    traffic: Traffic | None = None

    @property
    def experiments(self) -> dict[str, Experiment]:
        found = {name: getattr(self, name) for name in type(self).model_fields}
        return {name: experiment for name, experiment in found.items() if experiment is not None}

    @property
    def timed(self) -> bool:
        """A busy machine would spoil it."""
        return any(experiment.timed for experiment in self.experiments.values())

    def careful(self) -> Preset:
        """The same with more repeats."""
        return self.model_copy(update={name: one.careful() for name, one in self.experiments.items()})


_KINDS = {name: get_args(field.annotation)[0] for name, field in Preset.model_fields.items()}
WORKED_OUT = tuple(f"{name}." for name, kind in _KINDS.items() if kind.arithmetic)
"""Prefixes of the names of figures that are computed, not measured."""
FITTED = "growth."
"""Prefix of those that were measured once, step after step: a fitted curve says how certain they are."""


def by_repeat(figures: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The figures that each repeat alone would have given, or curves that fit one run nearly as well as the likeliest.
    Empty: nothing tells how certain they are."""
    each = {name: some for name, found in figures.items() if (some := _KINDS[name].by_repeat(found))}
    repeats = min(map(len, each.values()), default=0)
    return [{**figures, **{name: some[i] for name, some in each.items()}} for i in range(repeats)]
