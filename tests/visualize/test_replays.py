"""The runs that the repository keeps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lab import LabError, Run
from visualize import recorded_results as recorded
from visualize.jobs.run_store import RunStore
from visualize.reduce.settings_text import in_short


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Another folder in the place of the repository's."""
    monkeypatch.setattr(recorded, "RUNS", tmp_path / "runs")
    monkeypatch.setattr(recorded, "runs", recorded.runs.__wrapped__)
    return tmp_path / "runs"


def test_every_recorded_run_is_listed_by_a_name_of_its_own_and_can_be_opened() -> None:
    assert list(recorded.runs().values()) == recorded.run_files() != []
    for name, file in recorded.runs().items():
        opened = RunStore().reopen("a visitor", file)
        started = Run.load(file).started
        assert '"problem"' not in opened
        assert f"recorded on {started.hardware}, which so small a model hardly uses" in opened
        assert name.startswith(f"H100: {in_short(started.config)}, prompt ")
    same = {Run.load(file).prompt for name, file in recorded.runs().items() if name.endswith("prompt 1")}
    assert len(same) == 1


def test_nothing_is_listed_without_a_folder_and_nothing_that_cannot_be_read(elsewhere: Path) -> None:
    assert recorded.runs() == {}
    elsewhere.mkdir()
    (elsewhere / "broken.json").write_text(json.dumps({"format": "other"}))
    with pytest.raises(LabError):
        Run.load(elsewhere / "broken.json")
    assert recorded.runs() == {}


def test_runs_of_the_same_settings_and_prompt_are_reported_apart_by_their_files(elsewhere: Path) -> None:
    file = recorded.DOCS / "runs" / "h100-draft-2.json"
    elsewhere.mkdir()
    for name in ("a", "b"):
        (elsewhere / f"{name}.json").write_bytes(file.read_bytes())
    first = "H100: paged KV cache on, speculative decoding Draft, prompt 1"
    assert {name: file.stem for name, file in recorded.runs().items()} == {first: "a", f"{first} (b)": "b"}
