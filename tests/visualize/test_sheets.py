"""The style sheets, as far as they cost time on every frame."""

from __future__ import annotations

import re

from visualize.assets import STATIC

LARGE = {"html", "body", ":root", "main", "#lab", "#controls", "#view", ".stage", ".sheet", ".running", ".dark", "*"}
"""They contain most of a page: with ``:has`` on one of them, every change inside restyles all of it, unless it asks for
a class of a child."""


def test_no_rule_uses_has_on_a_large_part_of_a_page() -> None:
    sheets = sorted(STATIC.glob("*.css"))
    asked = {
        (sheet.name, holder)
        for sheet in sheets
        for holder in re.findall(r"((?:\S+ > )?[^\s,{}>+~]*):has\((?!> \.)", sheet.read_text("utf-8"))
    }
    assert ("page.css", ".toggle") in asked, "on small elements, :has is fine"
    assert {found for found in asked if re.split(r"\[|:not", found[1])[0] in LARGE | {""}} == set()
