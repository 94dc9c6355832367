"""Base of all experiments of a lesson's preset.

An experiment is a part of the preset in the front matter. Its name there is also where expressions find its figures:
``runs.cache.ttft_ms`` was measured by ``runs``. It does its work in portions, so that other visitors' runs can come in
between.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Protocol, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, model_validator

from lab.engine.engine import Engine
from lab.measure.measuring import CAREFUL
from lab.trace.events import Event
from lab.trace.run import Run

Load = Callable[[str], Engine]
"""Gives the engine of a model pair, "matched" or "mismatched"."""


class Watch(Protocol):
    """Told in words what is being done, what share of the experiment is done, and which ``events`` of which sequences
    happened since, if any are to be seen."""

    def __call__(self, words: str, share: float, *events: tuple[int, Event]) -> None: ...


MOST_REPEATS = 9


def _name(given: str) -> str:
    if not given.isidentifier():
        raise ValueError(f"{given!r} cannot stand in an expression: a name has letters, digits and _, as no_cache.")
    return given


Name = Annotated[str, AfterValidator(_name)]
"""A lesson's own name for a setting or a model."""


def spoken(name: str) -> str:
    """A name for display."""
    return name.replace("_", " ")


class Part(BaseModel):
    """A part of the front matter: unknown keys are refused, fields are read-only, no number is taken for a word."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, arbitrary_types_allowed=True)

    @model_validator(mode="before")
    @classmethod
    def _keys(cls, given: Any) -> Any:
        """Say what the keys are if one is wrong or missing."""
        fields = {info.alias or name: info for name, info in cls.model_fields.items()}
        if not isinstance(given, dict):
            raise ValueError(f"a mapping is wanted, with the keys {', '.join(fields)}.")
        for key in given:
            if key not in fields:
                raise ValueError(f"there is no {key!r} here; there are {', '.join(fields)}.")
        if missing := [key for key, info in fields.items() if info.is_required() and key not in given]:
            raise ValueError(f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing.")
        return given


@dataclass(frozen=True)
class Measured:
    """Figures and runs that an experiment found.

    Attributes:
        figures: JSON-ready numbers, words and lists of numbers by name, nested in one or two levels.
        runs: the recorded runs, if there are any to look at, by setting, in the order of the repeats.
    """

    figures: dict[str, Any]
    runs: dict[str, list[Run]] = field(default_factory=dict)


Work = Generator[None, None, Measured]


def whole(work: Work) -> Measured:
    """Do all portions, one after another."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value


class Experiment(Part, ABC):
    """Measurement to be made. ``arithmetic``: computed, or drawn with a seed, without an engine; the same everywhere.
    ``repeated``: every list among its figures has one number per repeat. ``timed``: it needs a quiet machine.
    """

    arithmetic: ClassVar[bool] = False
    repeated: ClassVar[bool] = False
    timed: ClassVar[bool] = False
    most_repeats: ClassVar[int] = MOST_REPEATS

    def careful(self) -> Self:
        """The same with ``CAREFUL`` times as many repeats, as far as it repeats anything."""
        most = {"repeats": min(self.most_repeats, CAREFUL * self.repeats)} if self.repeated else {}
        return self.model_copy(update=most)

    @abstractmethod
    def names(self) -> Mapping[str, Any]:
        """Every figure that it gives, by name; the values do not matter here."""

    @classmethod
    def by_repeat(cls, found: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
        """The figures of this kind that each repeat alone would have given. Empty: nothing was repeated."""
        if not cls.repeated:
            return []
        counts = {len(value) for group in found.values() for value in group.values() if isinstance(value, list)}

        def only(i: int, group: Mapping[str, Any]) -> dict[str, Any]:
            return {name: value[i] if isinstance(value, list) else value for name, value in group.items()}

        repeats = min(counts) if max(counts, default=1) > 1 else 0
        return [{key: only(i, group) for key, group in found.items()} for i in range(repeats)]

    @abstractmethod
    def work(self, load: Load, cancelled: threading.Event, watch: Watch) -> Work:
        """Measure, one portion per ``yield``; what it returns in the end means nothing once ``cancelled`` is set.
        Raises LabError: something in it cannot be done."""
