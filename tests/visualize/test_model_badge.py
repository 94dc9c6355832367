"""The words beside the picker of the models: sizes, the time to fetch, and what is here already."""

from __future__ import annotations

import pytest

from lab.registry import EMBEDDED, Pair
from visualize.pages.lab.model_badge import badge

LARGE = Pair(
    "Some <b> 2B with 200M, 13 GB", "some/2b", "some/200m", disk_bytes=3_750_000_000, memory_bytes=13_000_000_000
)


def test_a_pair_from_a_hub_has_its_sizes_and_the_time_to_fetch_before_run(monkeypatch: pytest.MonkeyPatch) -> None:
    said = badge("large", EMBEDDED | {"large": LARGE}, "Hello")
    assert "Some &lt;b&gt; 2B" in said
    assert "3.8 GB on disk, 13.0 GB in memory" in said
    assert "about 5 min at 100 Mbit/s" in said
    monkeypatch.setattr("lab.registry.has_weights", lambda hub: True)
    assert "Already on this machine" in badge("large", {"large": LARGE}, "Hello")
    assert "Stop cancels" in badge("other", EMBEDDED, "Hello")
    assert "stories" in badge("matched", EMBEDDED, "Hello")
