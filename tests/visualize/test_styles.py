"""Style sheets keep clear of what Safari renders differently. (WebKitGTK 2.50 drew charts of no height.)"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from visualize.assets import ROOT

SHEETS = sorted(ROOT.rglob("*.css"))
LARGE = {"html", "body", ":root", "main", "#lab", "#controls", "#view", ".stage", ".sheet", ".running", ".dark", "*"}
"""They contain most of a page: with ``:has`` on one of them, every change inside restyles all of it, unless it asks for
a class of a child."""


def rules(sheet: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Each rule's selector and declarations, those within media queries included."""
    text = re.sub(r"/\*.*?\*/", "", sheet.read_text("utf-8"), flags=re.DOTALL)
    for selector, body in re.findall(r"([^{};]+)\{([^{}]*)\}", text):
        declared = (each.split(":", 1) for each in body.split(";") if ":" in each)
        yield selector.strip(), {name.strip(): value.strip() for name, value in declared}


@pytest.mark.parametrize("sheet", SHEETS, ids=lambda sheet: f"{sheet.parent.name}/{sheet.stem}")
def test_grids_name_their_rows_and_underlines_are_styled_by_longhands(sheet: Path) -> None:
    """WebKit does not stretch a row of a grid that is as high as its flex basis: it stays as high as its content, which
    may be nothing. Safari drops a declaration of text-decoration that names more than a line."""
    for selector, declared in rules(sheet):
        basis = re.match(r"[\d.]+ [\d.]+ (?!auto|0)(.+)", declared.get("flex", ""))
        if declared.get("display") == "grid" and basis:
            assert {"grid-template", "grid-template-rows", "grid-auto-rows"} & declared.keys(), selector
        assert re.fullmatch(r"|none|underline|line-through", declared.get("text-decoration", "")), selector


def test_no_rule_uses_has_on_a_large_part_of_a_page() -> None:
    asked = {
        (sheet.name, holder)
        for sheet in SHEETS
        for holder in re.findall(r"((?:\S+ > )?[^\s,{}>+~]*):has\((?!> \.)", sheet.read_text("utf-8"))
    }
    assert ("page.css", ".toggle") in asked, "on small elements, :has is fine"
    assert {found for found in asked if re.split(r"\[|:not", found[1])[0] in LARGE | {""}} == set()
