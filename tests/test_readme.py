"""What the README claims is what was measured, and what is pinned."""

from __future__ import annotations

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")


def test_the_ladder_is_the_recorded_one():
    result = json.loads((ROOT / "docs/bench/ladder-cpu.json").read_text("utf-8"))
    recorded = {row["name"]: row for row in result["ladder"] + result["gammas"]}
    base = next(row["median"] for row in result["ladder"] if row["name"] == "cache")
    shown = re.findall(r"^\| ([^|]+) \| (\d+) \| (\d+) to (\d+) \| ([\d.]+) \|$", README, re.MULTILINE)
    assert {name for name, *_ in shown} == {row["name"] for row in result["ladder"]}
    for name, median, lower, upper, ratio in shown:
        row = recorded[name]
        assert [int(median), int(lower), int(upper)] == [round(row[key]) for key in ("median", "lower", "upper")]
        assert float(ratio) == round(row["median"] / base, 2)


def test_the_space_uses_the_pinned_gradio():
    pinned = re.search(r"^gradio==(.+)$", (ROOT / "requirements.txt").read_text("utf-8"), re.MULTILINE)
    assert f"sdk_version: {pinned[1]}\n" in README


def test_every_path_it_names_exists():
    for path in re.findall(r"\]\(([\w./-]+)\)", README) + re.findall(r"^\| `([\w./]+)`", README, re.MULTILINE):
        assert (ROOT / path).exists(), path
