"""A run as JSON, CSV and a standalone page: nothing is lost, and hostile text stays text."""

from __future__ import annotations

import csv
import functools
import io
import json
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from lab.config import EngineConfig
from lab.trace.events import BlockStored, Distributions, Event, StepTimed, Verified
from lab.trace.run import Run, RunFileError
from tests.visualize.conftest import CONFIGS, script
from tests.visualize.picture import Picture
from tests.visualize.test_text import HOSTILE
from tests.waiting import until
from visualize.jobs import run_store as shelf_module
from visualize.jobs.downloads import COLUMNS, FORMATS, numbers, page
from visualize.jobs.run_store import RunStore, StoredRun
from visualize.reduce.frames import Reducer, recorded


class Scripts(HTMLParser):
    """What a browser would treat as scripts, and every tag it would see."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.scripts: list[str] = []
        self.tags: list[str] = []
        self._inside = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._inside = tag == "script"
        self.scripts += [""] if self._inside else []

    def handle_endtag(self, tag: str) -> None:
        self._inside = False

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.scripts[-1] += data


def shown(transcript: str) -> Picture:
    picture = Picture()
    for text in transcript.splitlines()[1:]:
        picture.apply(json.loads(text))
    return picture


def test_the_csv_has_one_row_a_step_and_adds_up(events: list[Event]) -> None:
    rows = list(csv.DictReader(io.StringIO(numbers(Run(events)))))
    steps = [event for event in events if isinstance(event, StepTimed)]
    assert tuple(rows[0]) == COLUMNS
    assert [float(row["verify_ms"]) for row in rows] == [step.verify_ms for step in steps]
    assert [int(row["kv_used_bytes"]) for row in rows] == [step.kv_used_bytes for step in steps]
    assert sum(int(row["committed"]) for row in rows) == Run(events).metrics.generated_tokens
    verdicts = [event for event in events if isinstance(event, Verified)]
    assert sum(int(row["verified"]) for row in rows) == len(verdicts)
    assert sum(int(row["accepted"]) for row in rows) == sum(verdict.accepted for verdict in verdicts)


def test_a_recorded_run_shows_the_same_and_says_where_it_was_recorded(events: list[Event]) -> None:
    far = [replace(events[0], device="cuda:0", hardware="NVIDIA H200"), *events[1:]]
    picture = shown(recorded(Run(far), "x"))
    live = Picture()
    for frame in Reducer().feed(events):
        live.apply(frame)
    assert "recorded on NVIDIA H200" in picture.notice
    assert picture.head["accelerator"] == "NVIDIA H200"
    assert live.head["accelerator"] == "cpu"
    unnamed = shown(recorded(Run([replace(events[0], device="cuda:0"), *events[1:]]), "x"))
    assert "recorded on cuda:0" in unnamed.notice, "as by an earlier version"
    assert "recorded" not in live.notice
    assert picture.head["recorded"]
    assert "seed 3" in picture.head["described"]
    for name in ("tokens", "columns", "readouts", "say"):
        assert getattr(picture, name) == getattr(live, name)


@functools.cache
def calm_page() -> Scripts:
    return Scripts(page(Run(script(CONFIGS["speculative"], max_tokens=8))))


@pytest.mark.parametrize("hostile", HOSTILE)
def test_hostile_text_cannot_escape_its_place_in_an_exported_page(hostile: str) -> None:
    events = script(EngineConfig(speculative="draft"), max_tokens=8, logprobs=3, words=[hostile], others=[hostile])
    events[0] = replace(events[0], prompt_pieces=(hostile,), target=hostile, device=hostile)
    calm, text = calm_page(), page(Run(events))
    text.encode("utf-8")
    seen = Scripts(text)
    assert seen.tags == calm.tags
    assert len(seen.scripts) == 3
    assert seen.scripts[1:] == calm.scripts[1:]
    assert {token["text"] for token in shown(seen.scripts[0]).tokens} == {
        token["text"] for frame in Reducer().feed(events) for token in frame.get("tokens", [])
    }


def test_an_exported_page_requests_nothing() -> None:
    text = page(Run(script(CONFIGS["plain"], max_tokens=3)))
    assert "default-src 'none'" in text
    own = text.replace(Scripts(text).scripts[1], "")  # plotly.js contains addresses, but may not use them
    assert not re.search(r"""(src|href)=["'](?!data:)|url\(|@import|https?://""", own)


def contradictory() -> list[tuple[str, list[Event]]]:
    events = script(CONFIGS["speculative"], max_tokens=8, logprobs=3)
    at = next(i for i, event in enumerate(events) if isinstance(event, StepTimed))
    orphan = BlockStored(t_ms=1.0, block=99, owner=0, index=0)
    alone = Verified(t_ms=1.0, step=1, position=5, token_id=1, p=0.5, q=0.5, u=None, accepted=True)
    bare = replace(events[0], config={})
    found = next(event for event in events if isinstance(event, Distributions))
    unjudged, uneven = replace(found, position=7), replace(found, p=found.p[1:])
    return [
        ("a block nobody has", [*events[:at], orphan, *events[at:]]),
        ("a verdict on nothing", [*events[:at], alone, *events[at:]]),
        ("a run without settings", [bare, *events[1:]]),
        ("distributions around nothing", [unjudged if event is found else event for event in events]),
        ("a token without its p", [uneven if event is found else event for event in events]),
    ]


@pytest.mark.parametrize(("what", "events"), contradictory())
def test_a_run_that_contradicts_itself_is_refused(what: str, events: list[Event]) -> None:
    with pytest.raises(RunFileError, match="contradict each other"):
        recorded(Run(events), "x")


@pytest.fixture
def store() -> RunStore:
    return RunStore()


def put(store: RunStore, tmp_path: Path, text: str) -> tuple[str, dict[str, str]]:
    """Open a file with this text. Returns the run's id and the transcript's last record."""
    path = tmp_path / "run.json"
    path.write_text(text, "utf-8")
    lines = store.reopen("me", path).splitlines()
    return json.loads(lines[0])["run"], json.loads(lines[-1])


def test_files_are_read_and_written_one_at_a_time(
    store: RunStore, events: list[Event], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    id, _ = put(store, tmp_path, FORMATS["json"][1](Run(events)))
    path = tmp_path / "run.json"
    monkeypatch.setattr(shelf_module, "PATIENCE_S", 0.05)
    monkeypatch.setattr(shelf_module, "_waiting", threading.BoundedSemaphore(2))
    with shelf_module._in_turn():
        assert json.loads(store.reopen("me", path).splitlines()[-1])["problem"].startswith("Many files")
        assert store.take_away([id, "json"])["problem"].startswith("Many files")
    assert "text" in store.take_away([id, "json"]), "those two wait no longer"
    monkeypatch.setattr(shelf_module, "PATIENCE_S", 60.0)
    monkeypatch.setattr(shelf_module, "_waiting", threading.BoundedSemaphore(3))
    with ThreadPoolExecutor(8) as visitors:
        with shelf_module._in_turn():
            found = [visitors.submit(store.take_away, [id, "json"]) for _ in range(8)]
            until(lambda: sum(one.done() for one in found) == 6)  # two wait
            refused = {one for one in found if one.done()}
        assert all("problem" in one.result() for one in refused)
        assert all("text" in one.result() for one in set(found) - refused)
    assert "text" in store.take_away([id, "json"])


def test_a_saved_run_can_be_reopened_and_saved_again(store: RunStore, tmp_path: Path) -> None:
    events = script(CONFIGS["all"])
    store.put("me", "one", events)
    file = store.take_away(["one", "json"])
    id, last = put(store, tmp_path, file["text"])
    assert last["finished"]["reason"] == "length"
    again = store.take_away([id, "json"])
    assert again == file | {"name": f"decode-lab-run-{id[:8]}.json"}, "the name is short"
    for form in FORMATS:
        assert store.take_away([id, form])["text"]


def test_the_last_two_runs_of_a_visitor_are_kept(store: RunStore) -> None:
    for id in ("one", "two", "three"):
        store.put("me", id, script(CONFIGS["plain"], max_tokens=3))
    assert [bool(store.events(id)) for id in ("one", "two", "three")] == [False, True, True]
    for id in ("refused", "refused again", "and again"):
        store.put("me", id, [])
    assert "text" in store.take_away(["three", "json"]), "those that were refused take no other's place"
    store.put("you", "yours", script(CONFIGS["plain"], max_tokens=3))
    store.clear("me")
    assert "Run it again" in store.take_away(["three", "json"])["problem"]
    assert "text" in store.take_away(["yours", "json"])


def test_the_shelf_is_looked_at_and_changed_by_one_visitor_at_a_time(store: RunStore) -> None:
    """Else it would be an error to look for a run while another is put there."""
    alone: list[bool] = []

    class Runs(dict[str | None, dict[str, StoredRun]]):
        def __iter__(self) -> Iterator[str | None]:
            alone.append(store._lock.locked())
            return super().__iter__()

        def values(self) -> Any:
            alone.append(store._lock.locked())
            return super().values()

        def pop(self, *visitor: Any) -> Any:
            alone.append(store._lock.locked())
            return super().pop(*visitor)

    store._runs = Runs()
    store.put("me", "one", ["a step"])
    assert store.visitors == {"me"}
    assert store.events("one")
    store.clear("me")
    assert alone == [True] * 4


@pytest.mark.parametrize("text", ["", "{}", "[1, 2", '{"format": "decode-lab-run", "version": 4, "events": [{}]}'])
def test_an_invalid_file_is_explained_and_loses_nothing(
    store: RunStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setattr(shelf_module, "_waiting", threading.BoundedSemaphore(1))  # a place is not lost either
    store.put("me", "one", script(CONFIGS["plain"], max_tokens=3))
    _, last = put(store, tmp_path, text)
    assert "run.json is" in last["problem"]
    assert ".." not in last["problem"], "a sentence has one end"
    assert last["problem"].endswith(" Open the .json that this page's Save › Run wrote."), "what would be right is said"
    assert "text" in store.take_away(["one", "json"])


@pytest.mark.parametrize("wanted", [["one"], ["one", "exe"], None, {"a": 1}])
def test_an_invalid_save_request_is_explained(store: RunStore, wanted: object) -> None:
    assert "can be saved as json, csv, html" in store.take_away(wanted)["problem"]


def test_with_too_many_visitors_the_oldest_run_is_dropped(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("visualize.jobs.run_store.MOST_VISITORS", 3)
    events = script(CONFIGS["plain"], max_tokens=3)
    for visitor in ("ann", "ben", "cat", "ann", "dan"):
        store.put(visitor, f"{visitor}'s", events)
    assert store.visitors == {"ann", "cat", "dan"}
    assert "no longer has this run" in store.take_away(["ben's", "csv"])["problem"]


def test_when_full_the_shelf_drops_the_oldest_run_and_never_the_newest(
    store: RunStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = script(CONFIGS["plain"], max_tokens=30)
    text = Run(events).to_json()
    monkeypatch.setattr("visualize.jobs.run_store.MOST_KEPT", 2.5 * max(2 * len(text), 500 * len(events)))
    store.put("ann", "ann's", events)
    opened, _ = put(store, tmp_path, text)
    assert store.visitors == {"ann", "me"}
    store.put("ben", "ben's", events)
    assert store.visitors == {"me", "ben"}
    store.put("cat", "cat's", events * 10)
    assert store.visitors == {"cat"}
    assert "no longer has this run" in store.take_away([opened, "csv"])["problem"]
