"""The style sheets, as far as they cost something at every picture."""

from __future__ import annotations

import re

from visualize.assets import STATIC

LARGE = {"html", "body", ":root", "main", "#lab", "#controls", "#view", ".stage", ".sheet", ".running", ".dark", "*"}
"""They hold most of a page: of one whose ``:has`` is asked about, every change within styles all of it anew."""


def test_no_rule_asks_what_is_in_a_large_part_of_a_page() -> None:
    sheets = sorted(STATIC.glob("*.css"))
    asked = {
        (sheet.name, holder)
        for sheet in sheets
        for holder in re.findall(r"((?:\S+ > )?[^\s,{}>+~]*):has\(", sheet.read_text("utf-8"))
    }
    assert ("page.css", ".toggle") in asked, "small ones may be asked"
    assert {found for found in asked if re.split(r"\[|:not", found[1])[0] in LARGE | {""}} == set()
