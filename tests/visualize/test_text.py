"""Hostile text stays text, and nothing in it is invisible."""

from __future__ import annotations

import html
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.config import EngineConfig
from tests.visualize.conftest import script
from tests.visualize.picture import Picture
from visualize.charts import CHARTS
from visualize.reduce.frames import Reducer
from visualize.text import escaped, visible

HOSTILE = [
    "<img src=x onerror=window.pwned=1>",
    "${window.pwned=1}",
    "{{constructor}}",
    "</script><script>pwned()</script>",
    "\u202eevil\u2066",
    "\x00\x07\r\n\t",
    "\ud83d",
    "a" * 5000,
    "&lt;b&gt;",
    "👩‍👩‍👧",
]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\n", "↵"),
        ("\t", "⇥"),
        ("\u202e", "⟨RLO⟩"),
        ("\x07", "⟨0007⟩"),
        ("\u00a0", "⟨NBSP⟩"),
        ("\ud83d", "⟨D83D⟩"),
        ("👩‍👩‍👧", "👩‍👩‍👧"),
        ("a b", "a b"),
        ("", ""),
    ],
)
def test_invisible_characters_are_spelled_out(text: str, shown: str) -> None:
    assert visible(text) == shown


@given(st.text())
def test_visible_is_idempotent_and_printable(text: str) -> None:
    shown = visible(text)
    assert visible(shown) == shown
    assert shown.replace("\u200c", "").replace("\u200d", "").isprintable()


@given(st.text())
def test_escaped_text_contains_no_markup(text: str) -> None:
    label = escaped(text)
    assert "<" not in label
    assert ">" not in label
    assert len(html.unescape(label)) <= 42


def flat(values: list[Any]) -> list[Any]:
    return [item for value in values for item in (flat(value) if isinstance(value, list) else [value])]


@pytest.mark.parametrize("hostile", HOSTILE)
def test_hover_labels_contain_no_markup_from_tokens(hostile: str) -> None:
    events = script(EngineConfig(speculative="draft"), max_tokens=12, words=[hostile], others=[hostile])
    shown = Picture()
    for frame in Reducer().feed(events):
        json.dumps(frame).encode()
        shown.apply(frame)
    for chart in CHARTS:
        for trace in json.loads(shown.figure(chart).to_json())["data"]:
            for value in flat(trace.get("customdata", [])):
                assert set(str(value)).isdisjoint("<>")
                assert len(str(value)) < 400
