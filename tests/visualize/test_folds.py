"""What a link changes can be seen: folds with such an input in them are open, and no others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace

import gradio as gr
import pytest

from lab.engines import EMBEDDED
from tests.visualize.scripted import ScriptedEngine
from visualize.panels import compare, deploy, lab, pool
from visualize.server.work import Line


def load(pair: str) -> ScriptedEngine:
    return ScriptedEngine()


def within(build: Callable[[gr.Blocks], None]) -> gr.Blocks:
    with gr.Blocks() as pages:
        build(pages)
    return pages


PAGES: Mapping[str, Callable[[], gr.Blocks]] = {
    "lab": lambda: lab.build(load, Line(), EMBEDDED, any_pair=False),
    "compare": lambda: within(lambda pages: compare.build(pages, load, Line(), EMBEDDED)),
    "pool": lambda: within(lambda pages: pool.build(pages, load, Line())),
    "deploy": lambda: within(deploy.build),
}


@pytest.mark.parametrize(
    ("page", "query", "open_folds"),
    [
        ("lab", {}, []),
        ("lab", {"gamma": "2", "max_tokens": "160", "eviction": "?"}, []),
        ("lab", {"max_tokens": "9", "kernels": "reference"}, ["Sampling", "Device"]),
        ("lab", {"seed": "", "block_size": "8"}, ["Pool", "Sampling"]),
        ("lab", {"cache": "0"}, []),  # whatever follows from it
        ("compare", {"temperature": "1", "own": ""}, []),
        ("compare", {"own": "paged=true"}, ["Other settings, as text"]),
        ("compare", {"pair": "mismatched", "top_k": "5"}, ["Other settings, as text", "More sampling"]),
        ("pool", {"sequences": "3", "temperature": "0.8"}, []),
        ("pool", {"system": "Another."}, ["More"]),
        ("deploy", {"gamma": "2"}, []),
        ("deploy", {"paged": "0"}, ["What vLLM has no flag for"]),
    ],
)
def test_a_link_opens_the_folds_in_which_it_changes_something(
    page: str, query: dict[str, str], open_folds: list[str]
) -> None:
    events = PAGES[page]().fns.values()
    opened = next(event for event in events if getattr(event.fn, "__name__", "") == "opened")
    updates = opened.fn(SimpleNamespace(query_params=query))
    shown = zip(opened.outputs, updates, strict=True)
    folds = [(part, update["open"]) for part, update in shown if isinstance(part, gr.Accordion)]
    assert [part.label for part, is_open in folds if is_open] == open_folds
    assert not any(part.open for part, _ in folds)  # as the page comes
