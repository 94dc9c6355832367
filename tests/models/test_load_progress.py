"""The progress of loading, and its end if it is cancelled."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from lab.models import load_progress as progress
from lab.models.load_progress import Loading, LoadingCancelled, current_loading, track_loading
from lab.models.loader import load_model
from tests import tiny_models


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("model")
    tiny_models.random_model("llama", num_hidden_layers=3).save_pretrained(where)
    return where


class Recording(Loading):
    """Records every status, and cancels itself after ``most`` weights."""

    def __init__(self, most: int = 10_000) -> None:
        super().__init__()
        self.statuses, self.most = [], most

    def took(self, weight: str) -> None:
        super().took(weight)
        self.statuses.append(self.status())
        if len(self.statuses) == self.most:
            self.cancelled.set()


def load(folder: Path):
    return load_model(folder, name="tiny", place="cpu", dtype=torch.float32)


def test_every_weight_is_reported_to_the_watcher(folder: Path) -> None:
    loading = Recording()
    with track_loading(loading):
        model = load(folder)
    assert len(loading.statuses) == len(list(model.model.parameters()))
    assert re.fullmatch(r"Loading tiny: 0\.\d of 0\.3 MB, layer 1 of 3\.", loading.statuses[2])
    layers = [int(said.split("layer ")[1][0]) for said in loading.statuses if "layer" in said]
    assert layers == sorted(layers)
    assert loading.statuses[-1] == "Loaded tiny; getting ready …"


def test_a_cancelled_load_begins_no_other_and_ends_only_its_own_downloads(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[bool] = []
    monkeypatch.setattr(progress, "abandon_downloads", lambda: ended.append(True))
    for fetches in (False, True):
        loading = Loading()
        loading.begin("target", torch.nn.Linear(2, 2), 4)
        if fetches:
            loading.bar()(unit="B", total=5)
        loading.cancelled.set()
        with pytest.raises(LoadingCancelled):
            loading.begin("draft", torch.nn.Linear(2, 2), 4)
        assert bool(ended) == fetches


def test_a_cancelled_load_ends_at_the_next_weight(folder: Path) -> None:
    loading = Recording(most=5)
    with pytest.raises(LoadingCancelled, match="can still be chosen"), track_loading(loading):
        load(folder)
    assert len(loading.statuses) == 5
    assert current_loading() is None
    assert load(folder).layers == 3


def test_a_download_of_several_files_is_reported_once() -> None:
    """Creates and updates progress bars as huggingface_hub's snapshot_download does."""
    loading = Loading()
    assert loading.share is None
    loading.begin("a/model", torch.nn.Linear(2, 2), 4)
    kind = loading.bar()
    files = kind(total=2, desc="Fetching 2 files")
    came, written = (
        kind(desc=name, total=0, initial=0, unit="B", unit_scale=True)
        for name in ("Downloading bytes", "Reconstructing")
    )
    for bar in (came, written):
        bar.total += 5_000_000
        bar.update(2_000_000)
    files.update()
    assert (loading.status(), loading.share) == ("Fetching a/model: 2.0 of 5.0 MB.", 0.4)
    came.update(2_000_000)
    assert loading.status() == "Fetching a/model: 4.0 of 5.0 MB.", "what came and is not written yet counts"
    came.total = 6_250_000  # more came than was foreseen
    came.update(1_100_000)
    assert loading.status() == "Fetching a/model: 5.0 of 5.0 MB."


def test_a_status_is_of_one_model_although_another_thread_begins_the_next() -> None:
    loading, model = Loading(), tiny_models.random_model("llama", num_hidden_layers=3)
    loading.begin("target", model, 4)

    class Bar(loading.bar()):
        received = property(lambda self: loading.begin("draft", model, 4), lambda self, value: None)

    Bar(unit="B", total=10**9)
    assert re.fullmatch(r"Fetching \w+: 0\.0 of 1\.0 GB\.", loading.status())
