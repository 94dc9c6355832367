"""Hypothesis strategies of settings' values."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from lab.settings import Setting
from visualize.reduce.settings_text import listed_ids
from visualize.run_settings import FORM, stops_as_text


def _rounded(value: float) -> float:
    return round(value, 2)


def values(setting: Setting) -> st.SearchStrategy[Any]:
    """All that a page's setting can be."""
    match setting.kind:
        case "switch":
            return st.booleans()
        case "choice":
            return st.sampled_from(list(setting.options))
        case "choices":
            return st.lists(st.sampled_from(list(setting.options)), unique=True).map(tuple)
        case "number":
            low, high = setting.bounds
            numbers = st.integers(int(low), int(high)) if setting.whole else st.floats(low, high).map(_rounded)
            return st.none() | numbers if setting.may_be_empty else numbers
    return st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


LAB = {name: values(one) for name, one in FORM.settings.items()} | {
    "stop": st.lists(values(FORM["stop"]).filter(bool), max_size=3).map(stops_as_text),
    "stop_token_ids": st.lists(st.integers(0, 10**6), max_size=3).map(listed_ids),
    "kv_cache_dtype_skip_layers": st.sampled_from(["", "0 15", "3", "sliding_window"]),
    "token_ids": st.just(False),
}
"""Values of the Lab's settings by name."""
