"""What is stored of uploads is deleted in time, whatever else arrives."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import gradio as gr
import pytest
from gradio import route_utils

import app
from lab.registry import Engines
from tests.coroutines import complete
from visualize import upload_cleanup as sent
from visualize.jobs.job_queue import JobQueue
from visualize.request_bodies import Refusal
from visualize.upload_cleanup import keep_deleting


class Arriving(set[str]):
    """A set to which, while it is gone through for the first time, another upload adds its file."""

    late: str

    def __iter__(self) -> Iterator[str]:
        for file in super().__iter__():
            yield file
            self.add(self.late)


def test_a_file_that_arrives_while_old_ones_are_deleted_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(route_utils, "delete_files_created_by_app", route_utils.delete_files_created_by_app)
    names = [str(tmp_path / name) for name in ("old", "older", "late")]
    for name in names:
        Path(name).touch()
        os.utime(name, (0, 0))
    *old, late = names
    files = Arriving(old)
    files.late = late
    pages = gr.Blocks()
    pages.temp_file_sets = [files]
    keep_deleting()
    for _ in range(2):  # the schedule goes on after the first
        route_utils.delete_files_created_by_app(pages, None)
    assert not [name for name in names if os.path.exists(name)]


def test_files_that_may_still_be_read_are_kept_and_one_that_cannot_be_deleted_ends_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int | None] = []

    def barred(pages: gr.Blocks, age: int | None) -> None:
        asked.append(age)
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(route_utils, "delete_files_created_by_app", barred)
    keep_deleting()
    route_utils.delete_files_created_by_app(gr.Blocks(), 3600)
    assert asked == [3600]


def test_of_an_upload_that_is_too_large_the_rest_is_read_and_kept_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that is cut off while sending misses the answer, and one that sends for ever would fill the disk."""
    parts, kept = [b"1234"] * 9, io.BytesIO()
    monkeypatch.setattr(sent, "MOST_BYTES", 10)
    monkeypatch.setattr(sent, "SpooledTemporaryFile", lambda _: kept)

    async def receive() -> dict[str, object]:
        part = parts.pop()
        if not parts:
            assert kept.tell() <= 10
        return {"type": "http.request", "body": part, "more_body": bool(parts)}

    with pytest.raises(Refusal) as refused:
        complete(sent.read({"type": "http", "headers": []}, receive))
    assert refused.value.answer.status_code == 413
    assert not parts


def test_no_more_is_taken_than_may_be_on_disk_until_the_first_is_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(sent, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(sent, "MOST_STORED", 4 * sent.A_FILE)
    stored = sent.Stored()

    def is_refused(size: int) -> bool:
        try:
            stored.admit(size)
        except Refusal as refusal:
            return refusal.answer.status_code == 507
        return False

    assert not is_refused(1), "it takes as much as the smallest file on disk"
    now[0] += 60
    assert not is_refused(3 * sent.A_FILE)
    assert is_refused(1)
    now[0] = sent.STORED_S + sent.CHECKED_S  # when the first may still be there: the check came just before its time
    assert is_refused(1)
    now[0] += 1
    assert not is_refused(1)
    assert is_refused(1), "of the others none is deleted yet"
    now[0] += 60
    assert not is_refused(3 * sent.A_FILE)


def test_the_labs_own_server_keeps_deleting(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(pages: gr.Blocks, age: int | None) -> None:
        raise RuntimeError("Set changed size during iteration")

    monkeypatch.setattr(route_utils, "delete_files_created_by_app", fails)
    for change in ("share_configurations", "keep_no_values"):  # these would outlive the test
        monkeypatch.setattr(app, change, lambda *_: None)
    engines = Engines()
    pages = app.build(engines, engines, JobQueue(), told={})
    route_utils.delete_files_created_by_app(pages, None)
