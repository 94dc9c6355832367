"""A page's settings, as its controls or its address give them. A link may come from anywhere, so it is checked.

Each value of a link has to be within the bounds of the page's own controls; one that is not
stays at its default and is reported.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import parse_qsl, urlencode

from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from lab.errors import ConfigError
from lab.settings import OLD_NAMES, with_new_names


class OldLinks:
    """ASGI middleware: redirect a page's link with old names of settings to the one with the names of now."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app
        if scope["type"] == "http" and scope["method"] == "GET" and not scope["path"].startswith("/gradio_api/"):
            query = dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True))
            if not OLD_NAMES.keys().isdisjoint(query):
                app = RedirectResponse(f"?{urlencode(with_new_names(query))}")
        await app(scope, receive, send)


SWITCHED = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
"""What a link or the server's environment may say for a toggle. The page itself writes "1" and "0"."""


@dataclass(frozen=True)
class Link:
    """What a page's address may say.

    Attributes:
        defaults: every setting's name and the value it has when the link does not name it.
        choices: for each setting with a fixed choice of values, the values and what the page calls them. Where the
            default is a tuple, the setting is several of them, separated by commas in a link.
        bounds: minimum and maximum of each numeric setting.
        most_characters: maximum length of each text setting.
        may_be_empty: numbers that may be left empty; they are then None.
    """

    defaults: Mapping[str, Any]
    choices: Mapping[str, Mapping[Any, str]]
    bounds: Mapping[str, tuple[float, float]]
    most_characters: Mapping[str, int]
    may_be_empty: tuple[str, ...] = field(default=())

    def choosing(self, **choices: Mapping[Any, str]) -> Link:
        """A copy with other ``choices`` for some settings."""
        return replace(self, choices={**self.choices, **choices})

    def read(self, query: Mapping[str, str], of: str = "link") -> tuple[dict[str, Any], list[str]]:
        """The settings a link names, or what ``of`` says instead of one, and a sentence for each value that was left
        out."""
        settings: dict[str, Any] = {}
        notices = []
        for name in self.defaults:
            if name in query:
                try:
                    settings[name] = self._value(name, str(query[name]))
                except ValueError as error:
                    notices.append(f"The {of}'s {name} was left out: {error}.")
        return settings, notices

    def controls(self, values: Sequence[Any]) -> dict[str, Any]:
        """The settings from the controls' values, which come in the order of ``defaults``. A browser sometimes sends a
        whole number as a float; an empty number is the default, or None where it may be empty."""
        settings = dict(zip(self.defaults, values, strict=True))
        for name, value in settings.items():
            default = self.defaults[name]
            if value is None and name not in self.may_be_empty:
                settings[name] = default
            elif isinstance(value, float) and not isinstance(default, float) and value.is_integer():
                settings[name] = int(value)
            elif isinstance(value, list):
                settings[name] = tuple(value)
        return settings

    def check(self, settings: Mapping[str, Any], labels: Mapping[str, str]) -> None:
        """Raises ConfigError if a number is out of bounds. ``labels``: what the page calls each setting."""
        for name in self.bounds:
            empty = settings[name] is None and name in self.may_be_empty
            if not empty and not self._fits(name, settings[name]):
                raise ConfigError(f"{labels[name]} must be {self._range(name)}.")

    def _value(self, name: str, text: str) -> Any:
        if name in self.most_characters:
            if len(text) > self.most_characters[name]:
                raise ValueError(f"it has more than {self.most_characters[name]:,} characters")
            return text
        if name in self.choices:
            texts = {str(value): value for value in self.choices[name]}
            if isinstance(self.defaults[name], tuple):
                return tuple(texts[_one_of(part, tuple(texts))] for part in filter(None, text.split(",")))
            return texts[_one_of(text, tuple(texts))]
        if isinstance(self.defaults[name], bool):
            return SWITCHED[_one_of(text.lower(), tuple(SWITCHED))]
        if name in self.may_be_empty and not text:
            return None
        try:
            value = int(text) if self._whole(name) else float(text)
        except ValueError:
            value = math.nan
        if not self._fits(name, value):
            raise ValueError(f"it must be {self._range(name)}")
        return value

    def _whole(self, name: str) -> bool:
        return not isinstance(self.defaults[name], float)

    def _fits(self, name: str, value: Any) -> bool:
        low, high = self.bounds[name]
        is_number = isinstance(value, int if self._whole(name) else (int, float)) and not isinstance(value, bool)
        return is_number and low <= value <= high

    def _range(self, name: str) -> str:
        low, high = self.bounds[name]
        return f"a {'whole ' if self._whole(name) else ''}number from {low:,.10g} to {high:,.10g}"


def _one_of(text: str, allowed: tuple[str, ...]) -> str:
    if text not in allowed:
        raise ValueError(f"it must be one of {', '.join(filter(None, allowed))}")
    return text
