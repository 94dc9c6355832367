"""What a link or a run's settings change can be seen: folds with such an input in them are opened, and no others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace

import gradio as gr
import pytest
from gradio.block_function import BlockFunction

from lab.registry import EMBEDDED
from tests.visualize.scripted import ScriptedEngine
from tests.visualize.test_settings_from_run import started
from visualize.jobs.job_queue import JobQueue
from visualize.jobs.run_store import RunStore
from visualize.pages.compare import page as compare
from visualize.pages.deploy import page as deploy
from visualize.pages.lab import page as lab
from visualize.pages.pool import page as pool
from visualize.run_settings import Settings


def load(pair: str) -> ScriptedEngine:
    return ScriptedEngine()


def within(build: Callable[[gr.Blocks], None]) -> gr.Blocks:
    with gr.Blocks() as pages:
        build(pages)
    return pages


PAGES: Mapping[str, Callable[[], gr.Blocks]] = {
    "lab": lambda: lab.build(load, JobQueue(), EMBEDDED, any_pair=False),
    "compare": lambda: within(lambda pages: compare.build(pages, load, JobQueue(), EMBEDDED)),
    "pool": lambda: within(lambda pages: pool.build(pages, load, JobQueue())),
    "deploy": lambda: within(deploy.build),
}


@pytest.mark.parametrize(
    ("page", "query", "open_folds"),
    [
        ("lab", {}, []),
        pytest.param(
            *("lab", {"num_speculative_tokens": "2", "max_tokens": "160", "eviction": "?"}, []),
            marks=pytest.mark.filterwarnings("ignore:The link's eviction was left out"),
        ),
        ("lab", {"max_tokens": "9", "kernels": "reference"}, ["Sampling", "Device"]),
        ("lab", {"seed": "", "block_size": "8"}, ["Pool", "Sampling"]),
        ("lab", {"kv_cache": "0"}, []),  # whatever follows from it
        ("compare", {"temperature": "1", "own": ""}, []),
        ("compare", {"own": "paged=true"}, ["Other settings, as text"]),
        ("compare", {"pair": "mismatched", "top_k": "5"}, ["Other settings, as text", "More"]),
        ("pool", {"sequences": "3", "temperature": "0.8"}, []),
        ("pool", {"system": "Another."}, ["More"]),
        ("deploy", {"num_speculative_tokens": "2"}, []),
        ("deploy", {"paged": "0"}, ["What vLLM has no flag for"]),
    ],
)
def test_a_link_opens_the_folds_in_which_it_changes_something(
    page: str, query: dict[str, str], open_folds: list[str]
) -> None:
    opened = event_of(PAGES[page](), "opened")
    assert not any(fold.open for fold in folds_of(opened)), "as the page comes"
    assert opened_by(opened, SimpleNamespace(query_params=query)) == open_folds


@pytest.mark.parametrize(
    ("settings", "open_folds"),
    [
        (Settings(), []),
        (Settings(kv_cache=False, paged=False), []),  # whatever follows from it
        (Settings(max_tokens=9, kernels="reference"), ["Sampling", "Device"]),
        (Settings(enable_prefix_caching=True, eviction="priority", num_speculative_tokens=2), ["Pool"]),
    ],
)
def test_the_settings_of_a_run_open_the_folds_in_which_they_differ(settings: Settings, open_folds: list[str]) -> None:
    store = RunStore()
    store.put("visitor", "run", [started(settings)])
    workshop = SimpleNamespace(store=store)  # else the page has a store that nobody else reaches
    page = lab.build(load, JobQueue(), EMBEDDED, any_pair=False, workshop=workshop)
    assert opened_by(event_of(page, "use"), SimpleNamespace(run="run")) == open_folds


def event_of(page: gr.Blocks, name: str) -> BlockFunction:
    return next(event for event in page.fns.values() if getattr(event.fn, "__name__", "") == name)


def folds_of(event: BlockFunction) -> list[gr.Accordion]:
    return [part for part in event.outputs if isinstance(part, gr.Accordion)]


def opened_by(event: BlockFunction, asked: SimpleNamespace) -> list[str]:
    """The folds that an event opens. It closes none that a person has opened."""
    shown = dict(zip(event.outputs, event.fn(asked), strict=True))
    changes = {fold.label: shown[fold].get("open") for fold in folds_of(event)}
    assert False not in changes.values()
    return [label for label, is_open in changes.items() if is_open]
