"""Models of a hub: fetched and decoded, or not to be had, and why."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from huggingface_hub.errors import HfHubHTTPError

from lab.memory.model_memory import find_model
from lab.models import checkpoint_files as hub_module
from lab.models.checkpoint_files import ModelLoadError
from tests import forked, tiny_models
from tests.hub import Hub, serving

Told = tuple[Any, list[str]]
"""A pair's tokens, or what is wrong with it; and what was told of its progress."""
TRY = """
import json, sys, threading, time
from lab import EngineConfig, LabError, SamplingParams, load_engine
from lab.models.load_progress import Loading, watched

stop_at, told, stopped = sys.argv[2], [], set()
for pair in map(tuple, json.loads(sys.argv[1])):
    loading, said, over = Loading(), [], threading.Event()

    def watch(pair=pair, loading=loading, said=said, over=over):
        while not over.wait(0.001):
            if (now := loading.status()) and now not in said[-1:]:
                said.append(now)
            if stop_at and stop_at in now and pair not in stopped:
                stopped.add(pair)
                loading.cancelled.set()

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        with watched(loading):
            engine = load_engine(*pair, device="cpu")
        config = EngineConfig(speculative="draft" if pair[1:] else "off")
        says = engine.generate("Once", config, SamplingParams(max_tokens=6, temperature=0)).token_ids
    except LabError as error:
        says = str(error)
    over.set()
    watcher.join()
    told.append((says, said))
print(json.dumps(told))
"""
STALL = """
import threading, time
from lab.registry import Engines, own
from lab.models.load_progress import Loading, LoadingCancelled, watched

engines, loading = Engines(any_pair=True, device="cpu"), Loading()

def ask():
    try:
        with watched(loading):
            engines(own("some/whole", None))
    except LoadingCancelled:
        print("stopped")

asking = threading.Thread(target=ask)
asking.start()
while not loading.status().startswith("Fetching"):
    time.sleep(0.01)
loading.cancelled.set()
asking.join()
try:
    engines(own("no-such-folder/at-all/here", None))  # waits for whatever is still being loaded
except Exception as error:
    print(error)
"""
START = """
import runpy, sys
for name in sys.argv[1:]:
    sys.argv = ["app.py", "--target", "some/target", "--draft", name]
    try:
        runpy.run_path("app.py", run_name="__main__")
    except SystemExit as end:
        print(end.code, flush=True)
"""
"""The app, with one draft after another."""


def test_a_huge_configuration_is_not_fetched(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody can name a model on the Memory page, and anybody can have put anything there."""
    config = models / "some/huge/config.json"
    config.parent.mkdir()
    config.write_text((models / "some/target/config.json").read_text("utf-8") + " " * (1 << 20))
    with serving(models) as hub:
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        address = f"{hub.address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", address)
        with pytest.raises(ModelLoadError, match=r"some/huge has 1,0[\d,]+ bytes; at most 1,048,576 are"):
            find_model("some/huge", open_to_all=True)
    assert len(hub.asked) == 1


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Whole ones, one of them in several files; and some that are not."""
    root = tmp_path_factory.mktemp("hub")
    model = tiny_models.random_model("llama", num_hidden_layers=3)
    large = tiny_models.random_model("llama", num_hidden_layers=3, hidden_size=256, intermediate_size=512)
    for name, it in (("target", model), ("draft", tiny_models.perturbed(model, 0.02)), ("large", large)):
        it.save_pretrained(root / "some" / name, max_shard_size="4MB")
        tiny_models.tokenizer().save_pretrained(root / "some" / name)
    assert len(list((root / "some/large").glob("*.safetensors"))) > 1
    large.save_pretrained(root / "some/whole")
    tiny_models.tokenizer().save_pretrained(root / "some/whole")
    without = {
        "shell": "config.json",
        "gguf": "model.safetensors",
        "torn": "model.safetensors",
        "mute": "tokenizer.json",
    }
    for name, left_out in without.items():
        (root / "some" / name).mkdir()
        for file in (root / "some/target").iterdir():
            if file.name != left_out:
                (root / "some" / name / file.name).write_bytes(file.read_bytes())
    (root / "some/mute/tokenizer_config.json").unlink()
    (root / "some/gguf/model.gguf").write_bytes(b"GGUF")
    (root / "some/torn/model.safetensors.index.json").write_text('{"weight_map')
    (root / "some/kept").mkdir()
    return root


def ask(hub: Hub, cache: Path, *pairs: tuple[str, ...], stop_at: str = "", **variables: str) -> tuple[list[Told], str]:
    """What becomes of each pair, by a process that asks the hub, and what that process wrote to its standard error.
    Each pair is stopped once, when it has told ``stop_at``. ``variables``: of its environment, besides."""
    done = forked.run(TRY, json.dumps(pairs), stop_at, **hub.variables | {"HF_HOME": str(cache)} | variables)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


@dataclass
class Refused:
    """Models that a process asked for one after another and did not get.

    Attributes:
        says: of each model, by its name.
        asked: the paths that the hub was asked for.
        errors: what the process wrote to its standard error.
    """

    says: dict[str, str]
    asked: list[str]
    errors: str


@pytest.fixture(scope="module")
def refused(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Refused:
    names = [f"some/{name}" for name in ("none", "kept", "shell", "gguf", "torn", "mute", "target", "large")]
    withheld = {"some/target/model.safetensors": 403, "some/large/model.safetensors.index.json": 403}
    with serving(models, gated=("some/kept",), refusals=withheld) as hub:
        told, errors = ask(hub, tmp_path_factory.mktemp("cache"), *((name,) for name in names))
        return Refused({name: says for name, (says, _) in zip(names, told, strict=True)}, hub.asked, errors)


@pytest.mark.parametrize("plain", [False, True], ids=["from Xet", "as plain files"])
def test_a_pair_is_fetched_and_is_there_afterwards(models, tmp_path, plain: bool) -> None:
    pairs = ("some/target", "some/draft"), ("some/large",), ("some/large",), (str(models / "some/target"),)
    with serving(models, xet=True) as hub:
        told, _ = ask(hub, tmp_path, *pairs, HF_HUB_DISABLE_XET=str(int(plain)))
    assert any(path.startswith("/xet/") for path in hub.asked) == (not plain)
    (drafted, _), (alone, said), (again, told), (found, _) = told
    assert drafted == found
    assert alone == again
    fetched = [line for line in said if line.startswith("Fetching some/large")]
    assert fetched[-1].endswith("5.7 of 5.7 MB."), said
    assert not any("of 0.0 MB" in line for line in said), said
    assert said[-1] == "Loaded some/large; getting ready …"
    assert not any(line.startswith("Fetching") for line in told), "it was there"


@pytest.mark.parametrize("xet", [False, True], ids=["plain files", "Xet"])
def test_a_download_can_be_stopped_and_goes_on_later(models, tmp_path, xet: bool) -> None:
    names = "some/large", "some/whole"  # several files, and one
    with serving(models, xet=xet, seconds=0.05 if xet else 0.02) as hub:
        told, errors = ask(hub, tmp_path, *((name,) for name in names for _ in range(2)), stop_at=": 0.")
    for (says, said), (later, _) in zip(told[::2], told[1::2], strict=True):
        assert says.startswith("Loading was stopped.")
        assert not any(line.startswith("Loaded") for line in said)
        assert len(later) == 6
    whole = sum(file.stat().st_size for name in names for file in (models / name).glob("*.safetensors"))
    assert whole < sum(hub.sent)
    if xet:  # a plain file comes in pieces of 10 MB, so here in one
        assert sum(hub.sent) < 1.8 * whole, "the first time, the rest was fetched all the same"
    assert errors == ""


def test_a_download_that_stalls_can_be_stopped_and_nobody_waits_for_it(models, tmp_path) -> None:
    with serving(models, xet=True, stalls=True) as hub:
        done = forked.run(STALL, **hub.variables, HF_HOME=str(tmp_path))
    assert done.stdout.startswith("stopped\nThere is no folder"), (done.stdout, done.stderr)


def test_a_model_that_is_not_to_be_had_is_reported_with_what_to_do(refused) -> None:
    none, kept = refused.says["some/none"], refused.says["some/kept"]
    assert none.startswith("The hub has no model some/none, or shows it only to some.")
    assert "hf auth login" in none
    assert kept.startswith("some/kept is given only to those who have asked for it.")
    assert "hf auth login" in kept
    assert refused.says["some/shell"].startswith("There is no config.json in some/shell. A model's folder holds")
    assert refused.says["some/mute"].startswith("some/mute has no tokenizer")
    assert "its files are damaged or incomplete" in refused.says["some/torn"]


def test_only_a_model_without_weights_is_said_to_have_none(refused) -> None:
    assert refused.says["some/gguf"].startswith("some/gguf could not be loaded: it has no weights as safetensors")
    for name in "some/target", "some/large":  # in one file, and in several
        says = refused.says[name]
        assert says.startswith(f"{name} could not be loaded: the hub answered 403 when asked for its weights."), says
        assert "hf auth login" in says


def test_weights_that_do_not_arrive_are_not_said_to_be_damaged(models, tmp_path) -> None:
    """As behind a firewall that lets only the hub itself through."""
    with serving(models, xet=True, refusals={"xet": 403}) as hub:
        told, errors = ask(hub, tmp_path, ("some/whole",), ("some/large",))
    for name, (says, _) in zip(("some/whole", "some/large"), told, strict=True):  # in one file, and in several
        assert says.startswith(f"{name} could not be loaded: its weights did not arrive. Load it again"), says
        assert "HF_HUB_DISABLE_XET=1" in says
        assert "403 Forbidden" in says
    assert errors == ""


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
        RuntimeError("Task error: File reconstruction error: IO Error: No space left on device (os error 28)"),
        OSError("There is not enough space on the disk"),
    ],
    ids=["plain files", "Xet", "Windows"],
)
def test_a_full_disk_is_told_as_such(monkeypatch, error: Exception) -> None:
    monkeypatch.setattr(hub_module, "hub_refusal", lambda hub, file: None)
    monkeypatch.setattr(hub_module, "try_to_load_from_cache", lambda hub, file: None)
    for raised in error, wrapped(error):
        with pytest.raises(ModelLoadError, match=r"a/b could not be loaded: its weights do not fit on this disk\."):
            hub_module.refuse_absent_weights("a/b", "a/b", raised)


def test_about_weights_that_are_there_no_hub_is_asked(monkeypatch) -> None:
    """The device may have had too little memory for them, say, and the network be gone."""
    asked = []
    monkeypatch.setattr(hub_module, "hub_refusal", lambda hub, file: asked.append(file))
    monkeypatch.setattr(hub_module, "try_to_load_from_cache", lambda hub, file: f"/cache/{file}")
    hub_module.refuse_absent_weights("a/b", "a/b", MemoryError())
    assert asked == []


def test_weights_of_which_some_are_absent_are_asked_for(monkeypatch, tmp_path) -> None:
    """One of several files is there, and the index that lists them: then the download broke off."""
    index = tmp_path / "index.json"
    index.write_text(json.dumps({"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}}), "utf-8")
    cached = {hub_module.SAFE_WEIGHTS_INDEX_NAME: str(index), "1.safetensors": "/cache/1"}
    monkeypatch.setattr(hub_module, "hub_refusal", lambda hub, file: None)
    monkeypatch.setattr(hub_module, "try_to_load_from_cache", lambda hub, file: cached.get(file))
    with pytest.raises(ModelLoadError, match="its weights did not arrive"):
        hub_module.refuse_absent_weights("a/b", "a/b", MemoryError())
    cached["2.safetensors"] = "/cache/2"
    hub_module.refuse_absent_weights("a/b", "a/b", MemoryError())


@pytest.mark.parametrize(
    "text",
    [
        '{"weight_map": {"a": "model.safetensors.index.json"}}',
        '{"weight_map": {"a": "../1.safetensors"}}',
        '{"weight_map": [',
        '{"weight_map": []}',
        '{"weight_map": {"a": []}}',
        "{}",
        "[]",
        "[" * 100_000,
    ],
    ids=["itself", "outside", "torn", "no names", "no name", "no map", "no index", "deep"],
)
def test_an_index_that_lists_no_weights_is_damaged_and_not_absent(monkeypatch, tmp_path, text: str) -> None:
    index, asked = tmp_path / "index.json", []
    index.write_text(text, "utf-8")
    look = hub_module.try_to_load_from_cache
    cached = {hub_module.SAFE_WEIGHTS_INDEX_NAME: str(index)}
    monkeypatch.setattr(hub_module, "hub_refusal", lambda hub, file: asked.append(file))
    monkeypatch.setattr(hub_module, "try_to_load_from_cache", lambda hub, file: cached.get(file) or look(hub, file))
    hub_module.refuse_absent_weights("a/b", "a/b", ValueError("no weights"))
    assert asked == []


def test_a_hub_that_is_gone_when_it_is_asked_for_weights_is_said_to_be(monkeypatch) -> None:
    monkeypatch.setattr(hub_module, "hub_refusal", lambda hub, file: TimeoutError("timed out"))
    monkeypatch.setattr(hub_module, "try_to_load_from_cache", lambda hub, file: None)
    said = (
        r"the hub gave no answer when asked for its weights\. Load it again in a minute\. \(TimeoutError: timed out\)"
    )
    with pytest.raises(ModelLoadError, match=said):
        hub_module.refuse_absent_weights("a/b", "a/b", OSError("Can't load the model for 'a/b'."))


@pytest.mark.parametrize(
    ("status", "advice"), [(401, "If you have access"), (403, "If you have access"), (503, "Load it again in a minute")]
)
def test_a_hub_that_refuses_weights_is_quoted_with_what_would_help(monkeypatch, status: int, advice: str) -> None:
    answer = httpx.Response(status, request=httpx.Request("HEAD", "http://hub"))
    monkeypatch.setattr(hub_module, "hub_refusal", lambda hub, file: HfHubHTTPError("no", response=answer))
    monkeypatch.setattr(hub_module, "try_to_load_from_cache", lambda hub, file: None)
    with pytest.raises(ModelLoadError, match=rf"answered {status} when asked for its weights\. {advice}"):
        hub_module.refuse_absent_weights("a/b", "a/b", OSError("Can't load the model for 'a/b'."))


def test_a_hub_is_waited_for_a_few_seconds_and_asked_as_whom_it_may_be(monkeypatch) -> None:
    """A visitor's model is asked for in nobody's name; its configuration may come without its size."""
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(
        hub_module, "get_hf_file_metadata", lambda url, **how: asked.append(how) or SimpleNamespace(size=None)
    )
    assert [hub_module.hub_refusal("a/b", token) for token in (False, None)] == [None, None]
    assert asked == [{"token": token, "timeout": hub_module.PATIENCE} for token in (False, None)]


def wrapped(error: Exception) -> Exception:
    """As transformers raises it."""
    try:
        raise OSError("Can't load the model for 'a/b'.") from error
    except OSError as told:
        return told


def test_a_hub_that_refuses_a_model_is_asked_once(refused) -> None:
    for name in "some/none", "some/kept":
        assert [path for path in refused.asked if name in path] == [f"/{name}/resolve/main/config.json"]
    assert refused.errors == ""


def test_what_is_wrong_with_a_model_in_the_cache_is_said_without_a_network(models, tmp_path) -> None:
    """That no hub answers is not to blame."""
    with serving(models) as hub:
        [(says, _)], _ = ask(hub, tmp_path, ("some/target",))
    assert len(says) == 6
    weights = max((tmp_path / "hub/models--some--target/blobs").iterdir(), key=lambda file: file.stat().st_size)
    weights.write_bytes(weights.read_bytes()[:-100])
    with serving(models) as hub:
        told, _ = ask(hub, tmp_path, ("some/target",), ("some/draft",), HF_HUB_OFFLINE="1")
    assert hub.asked == []
    (damaged, _), (absent, _) = told
    assert damaged.startswith("some/target could not be loaded: ")
    assert "its files are damaged or incomplete" in damaged
    assert absent.startswith("The configuration of some/draft could not be fetched.")


def test_the_app_says_what_a_hub_withholds_before_it_starts(models, tmp_path) -> None:
    with serving(models, gated=("some/kept",)) as hub:
        done = forked.run(START, "some/none", "some/kept", **hub.variables, HF_HOME=str(tmp_path))
    assert done.stdout == "2\n2\n", done.stderr
    none, kept = (line for line in done.stderr.splitlines() if line.startswith("app.py: "))
    assert none.startswith("app.py: The hub has no model some/none")
    assert kept.startswith("app.py: some/kept is given only to those")
