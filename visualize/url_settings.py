"""The settings of a page, as its controls or its address give them. A link may come from anywhere, so it is checked.

A value of a link that is not within the bounds of the page's own controls stays at its default and is reported. So is a
view that no page has, and a name that is no setting of this page nor of another: links of one page lead to others.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import make_dataclass, replace
from typing import Any
from urllib.parse import urlencode

from lab.errors import ConfigError
from lab.settings import SETTINGS, Setting
from visualize.charts import CHARTS
from visualize.text import visible

SWITCHED = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
"""What a link or the server's environment may say for a switch. The page itself writes "1" and "0"."""
VIEWS = {
    "run": "1",
    "step": r"start|\d+(\.\d+)?",
    "guess": r"\d+\.\d+",
    "at": r"\d+(\.\d+)?",
    "chart": "|".join(CHARTS),
    "face": "race|theory",
    "speed": r"auto|explain|slow|fast|fit|real|1|0\.\d+",
    "colour": "p|bits",
}
"""What a link may say of what is shown of a page, not of its settings: names, and patterns of their values."""
NO_SETTINGS = "|".join([*VIEWS, "claim|card|lesson|join|view|__.*|utm_.*|.*clid"])
"""Names that a link may have beside settings, as a pattern: what it shows of a page, Gradio's, and click counters'."""


class Form:
    """The settings of one page by name, in the order of its controls."""

    def __init__(self, settings: Iterable[Setting]) -> None:
        self.settings = {one.name: one for one in settings}
        self.names = tuple(self.settings)
        self.defaults = {name: one.default for name, one in self.settings.items()}

    def __getitem__(self, name: str) -> Setting:
        return self.settings[name]

    def with_options(self, **options: Mapping[Any, str]) -> "Form":
        """A copy with other options for some settings."""
        return Form(replace(self[name], options=options.get(name, self[name].options)) for name in self.names)

    def values_class(self, name: str) -> type:
        """A frozen dataclass with a field for each setting, and ``of``, which makes it from the controls' values."""
        of = classmethod(lambda cls, values: cls(**self.from_controls(values)))
        fields = [(one.name, Any, one.default) for one in self.settings.values()]
        return make_dataclass(name, fields, frozen=True, namespace={"of": of})

    def read(self, query: Mapping[str, str], source: str = "link") -> tuple[dict[str, Any], list[str]]:
        """The settings that ``query`` names, and what was left out: a sentence per value, and one for unknown names."""
        values: dict[str, Any] = {}
        notices = []
        for name in self.names:
            if name in query:
                try:
                    values[name] = _parse(self[name], str(query[name]))
                except ValueError as error:
                    notices.append(f"The {source}'s {name} was left out: {error}.")
        for name, known in VIEWS.items():
            if name in query and not re.fullmatch(known, value := str(query[name])):
                notices.append(f"The {source}'s {name} was left out: no page has “{visible(value[:40])}”.")
        known = {*self.names, *SETTINGS}
        unknown = [name for name in query if name not in known and not re.fullmatch(NO_SETTINGS, name)]
        if unknown:
            names = ", ".join(visible(name[:40]) for name in unknown[:5]) + (", …" if unknown[5:] else "")
            notices.append(f"The {source} names what this page has no setting for: {names}.")
        return values, notices

    def query(self, values: Mapping[str, Any]) -> str:
        """The query of a link that gives ``values``. It leaves out defaults."""
        return urlencode({name: as_text(it) for name, it in values.items() if it != self.defaults[name]})

    def from_controls(self, values: Sequence[Any]) -> dict[str, Any]:
        """The settings from the controls' values. A browser may send a whole number as a float; an empty number is the
        default, or None where it may be empty."""
        settings = dict(zip(self.names, values, strict=True))
        for name, value in settings.items():
            if value is None and not self[name].may_be_empty:
                settings[name] = self[name].default
            elif isinstance(value, float) and self[name].whole and value.is_integer():
                settings[name] = int(value)
            elif isinstance(value, list):
                settings[name] = tuple(map(str, value))
            elif isinstance(value, dict):  # sent by no page of ours; it can be looked up, and is then refused
                settings[name] = str(value)
        return settings

    def check(self, values: Mapping[str, Any]) -> None:
        """Raises ConfigError if a number is out of bounds."""
        for name, one in self.settings.items():
            if one.bounds and not (values[name] is None and one.may_be_empty) and not _fits(one, values[name]):
                raise ConfigError(f"{one.title} must be {one.range}.")


def as_text(value: Any) -> str:
    """A value as links have it: a switch as 0 or 1, several with commas."""
    if isinstance(value, tuple):
        return ",".join(value)
    return "" if value is None else str(int(value) if isinstance(value, bool) else value)


def _parse(setting: Setting, text: str) -> Any:
    match setting.kind:
        case "switch":
            return SWITCHED[_one_of(text.lower(), SWITCHED)]
        case "choice" | "choices":
            values = {str(value): value for value in setting.options}
            if setting.kind == "choices":
                return tuple(values[_one_of(part, values)] for part in filter(None, text.split(",")))
            return values[_one_of(text, values)]
        case "number":
            if setting.may_be_empty and not text:
                return None
            try:
                value = int(text) if setting.whole else float(text)
            except ValueError:
                value = math.nan
            if not _fits(setting, value):
                raise ValueError(f"it must be {setting.range}")
            return value
        case _:
            if len(text) > setting.most_characters:
                raise ValueError(f"it has more than {setting.most_characters:,} characters")
            return text


def _fits(setting: Setting, value: Any) -> bool:
    low, high = setting.bounds
    is_number = isinstance(value, int if setting.whole else (int, float)) and not isinstance(value, bool)
    return is_number and low <= value <= high


def _one_of(text: str, allowed: Iterable[str]) -> str:
    if text not in allowed:
        raise ValueError(f"it must be one of {', '.join(filter(None, allowed))}")
    return text
