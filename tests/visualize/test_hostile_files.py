"""A run file with arbitrary values is opened or refused with an explanation."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lab.config import EngineConfig
from lab.trace.events import EVENT_TYPES
from lab.trace.recorder import BatchEvent, BatchStep
from lab.trace.run import Run
from tests.visualize.conftest import CONFIGS, script
from visualize.jobs.run_store import RUN, RunKind, RunStore
from visualize.pages.pool.page import POOL
from visualize.pages.pool.pool_file import as_json
from visualize.text import visible

pytestmark = pytest.mark.slow

DOCUMENT = json.loads(Run(script(CONFIGS["all"], max_tokens=6, logprobs=2)).to_json())
FIRST = {event["kind"]: index for index, event in reversed(list(enumerate(DOCUMENT["events"])))}
HTML = "<img src=x onerror=alert(1)></script><script>alert(1)</script>"


def deep(levels: int) -> list:
    found: list = []
    for _ in range(levels):
        found = [found]
    return found


HOSTILE = {
    "huge": 10**15,
    "negative": -1,
    "infinite": float("inf"),
    "html": HTML,
    "deep": deep(900),
    "wrong": [{"a": None}],
}


def opened(tmp_path: Path, text: str) -> list[dict[str, Any]]:
    """The records that the page gets for a file with this text."""
    path = tmp_path / "run.json"
    path.write_text(text, "utf-8")
    reported = RunStore().reopen("me", path)
    assert "<" not in reported
    return [json.loads(line) for line in reported.splitlines()]


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("kind", [kind for kind in EVENT_TYPES if kind in FIRST])
def test_any_value_in_any_event_is_shown_or_refused(tmp_path: Path, kind: str, name: str) -> None:
    event = DOCUMENT["events"][FIRST[kind]]
    for field in event:
        document = copy.copy(DOCUMENT) | {"events": list(DOCUMENT["events"])}
        document["events"][FIRST[kind]] = event | {field: HOSTILE[name]}
        head, *rest = opened(tmp_path, json.dumps(document))
        assert head["run"]
        assert rest


@pytest.mark.parametrize("kind", [RUN, POOL], ids=["run", "pool"])
def test_names_of_models_and_devices_are_spelled_out(tmp_path: Path, kind: RunKind) -> None:
    """Else what follows on the page would be written backwards."""
    names = {name: f"{name}\u202egpj.exe" for name in ("target", "draft", "hardware", "dtype")}
    began = replace(Run.of(DOCUMENT).started, device="cuda:0", **names)
    events = [began, *Run.of(DOCUMENT).events[1:]]
    path = tmp_path / "run.json"
    path.write_text(
        Run(events).to_json() if kind is RUN else as_json([BatchStep([BatchEvent(0.0, 0, began)], last=True)]), "utf-8"
    )
    _, first, *_ = map(json.loads, RunStore(kind).reopen("me", path).splitlines())
    shown = {name: first["head"][name] for name in ("target", "draft", "accelerator", "dtype")}
    names["accelerator"] = names.pop("hardware")
    assert shown == {name: visible(text) for name, text in names.items()}
    assert "\u202e" not in "".join(shown.values())


@pytest.mark.parametrize("levels", [900, 100_000])
def test_deeply_nested_files_are_refused(tmp_path: Path, levels: int) -> None:
    for around in ('{{"format": "decode-lab-run", "version": 4, "events": {}}}', "{}"):
        *_, last = opened(tmp_path, around.format("[" * levels + "]" * levels))
        assert "run.json is" in last["problem"]


@pytest.mark.parametrize("value", ["[]", "1", '""'])
@pytest.mark.parametrize("kind", [RUN, POOL])
def test_files_with_too_many_values_are_refused_unparsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: RunKind, value: str
) -> None:
    path = tmp_path / "run.json"
    path.write_text(f"[{','.join([value] * 1_100_000)}]")
    monkeypatch.setattr("lab.trace.run.json.loads", lambda text: pytest.fail("it was read"))
    *_, problem = RunStore(kind).reopen("me", path).splitlines()
    assert "; a page's run has fewer" in problem


def test_files_larger_than_any_run_are_refused_unparsed(tmp_path: Path) -> None:
    assert "at most 8,388,608" in opened(tmp_path, " " * 8 * 2**20 + "1")[-1]["problem"]


def test_the_longest_run_a_page_can_make_opens(tmp_path: Path) -> None:
    config = EngineConfig(paged=True, block_size=4, speculative="draft", num_speculative_tokens=8)
    text = Run(script(config, max_tokens=1000, logprobs=20)).to_json()
    assert len(text) > 1_500_000
    assert "finished" in opened(tmp_path, text)[-1]
