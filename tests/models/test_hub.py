"""Models of a hub: fetched and decoded, or not to be had, and why."""

from __future__ import annotations

import errno
import json
import os
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from huggingface_hub.errors import HfHubHTTPError

from lab.memory.model_memory import find_model
from lab.models import checkpoint_files
from lab.models.checkpoint_files import ModelLoadError
from tests import forked, tiny_models
from tests.hub import Hub, serving

Result = tuple[Any, list[str]]
"""A pair's tokens or error message, and the statuses of its loading."""
TRY = """
import json, sys, threading, time
from lab import EngineConfig, LabError, SamplingParams, load_engine
from lab.models.load_progress import Loading, track_loading

stop_at, results, stopped = sys.argv[2], [], set()
for pair in map(tuple, json.loads(sys.argv[1])):
    loading, statuses, over = Loading(), [], threading.Event()

    def watch(pair=pair, loading=loading, statuses=statuses, over=over):
        while not over.wait(0.001):
            if (now := loading.status()) and now not in statuses[-1:]:
                statuses.append(now)
            if stop_at and stop_at in now and pair not in stopped:
                stopped.add(pair)
                loading.cancelled.set()

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        with track_loading(loading):
            engine = load_engine(*pair, device="cpu")
        config = EngineConfig(speculative="draft" if pair[1:] else "off")
        result = engine.generate("Once", config, SamplingParams(max_tokens=6, temperature=0)).token_ids
    except LabError as error:
        result = str(error)
    over.set()
    watcher.join()
    results.append((result, statuses))
print(json.dumps(results))
"""
STALL = """
import threading, time
from lab.registry import Engines, named_pair
from lab.models.load_progress import Loading, LoadingCancelled, track_loading

engines, loading = Engines(any_pair=True, device="cpu"), Loading()

def ask():
    try:
        with track_loading(loading):
            engines(named_pair("some/whole", None))
    except LoadingCancelled:
        print("stopped")

asking = threading.Thread(target=ask)
asking.start()
while not loading.status().startswith("Fetching"):
    time.sleep(0.01)
loading.cancelled.set()
asking.join()
try:
    engines(named_pair("no-such-folder/at-all/here", None))  # waits for whatever is still being loaded
except Exception as error:
    print(error)
"""


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
    without = {"shell": "config.json", "gguf": "model.safetensors"}
    without |= {"torn": "model.safetensors", "mute": "tokenizer.json"}
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


def ask(hub: Hub, cache: Path, *pairs: tuple[str, ...], stop_at: str = "", **more: str) -> tuple[list[Result], str]:
    """The results of a process that loads each pair, and its standard error. Each pair is stopped once, at a status
    with ``stop_at`` in it. ``more``: variables of its environment."""
    done = forked.run(TRY, json.dumps(pairs), stop_at, **hub.variables | {"HF_HOME": str(cache)} | more)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


REFUSED = {
    "none": ("no model some/none", "hf auth login"),
    "kept": ("given only to those", "hf auth login"),
    "shell": ("no config.json in some/shell",),
    "gguf": ("no weights as safetensors",),
    "torn": ("damaged or incomplete",),
    "mute": ("some/mute has no tokenizer",),
    "target": ("answered 403", "hf auth login"),  # weights in one file
    "large": ("answered 403", "hf auth login"),  # in several
}


@pytest.mark.slow
def test_a_model_that_the_hub_does_not_give_is_reported_with_what_to_do(models, tmp_path) -> None:
    refusals = {"some/target/model.safetensors": 403, "some/large/model.safetensors.index.json": 403}
    with serving(models, gated=("some/kept",), refusals=refusals) as hub:
        results, errors = ask(hub, tmp_path, *((f"some/{name}",) for name in REFUSED))
    for (name, words), (message, _) in zip(REFUSED.items(), results, strict=True):
        assert all(word in message for word in words), message
        assert ("no weights as safetensors" in message) == (name == "gguf")
        if name in ("none", "kept"):  # the hub is asked once
            assert [path for path in hub.asked if f"some/{name}/" in path] == [f"/some/{name}/resolve/main/config.json"]
    assert errors == ""


@pytest.mark.slow
@pytest.mark.parametrize("plain", [False, True], ids=["from Xet", "as plain files"])
def test_a_pair_is_fetched_and_is_there_afterwards(models, tmp_path, plain: bool) -> None:
    pairs = ("some/target", "some/draft"), ("some/large",), ("some/large",), (str(models / "some/target"),)
    with serving(models, xet=True) as hub:
        results, _ = ask(hub, tmp_path, *pairs, HF_HUB_DISABLE_XET=str(int(plain)))
    assert any(path.startswith("/xet/") for path in hub.asked) == (not plain)
    (drafted, _), (alone, said), (again, later), (found, _) = results
    assert drafted == found
    assert alone == again
    fetched = [line for line in said if line.startswith("Fetching some/large")]
    assert fetched[-1].endswith("5.7 of 5.7 MB."), said
    assert not any("of 0.0 MB" in line for line in said), said
    assert said[-1] == "Loaded some/large; getting ready …"
    assert not any(line.startswith("Fetching") for line in later), "it was there"


@pytest.mark.slow
@pytest.mark.parametrize("xet", [False, True], ids=["plain files", "Xet"])
def test_a_download_can_be_stopped_and_goes_on_later(models, tmp_path, xet: bool) -> None:
    names = ("some/large", "some/whole") if xet else ("some/large",)  # several files, and one
    with serving(models, xet=xet, seconds=0.05 if xet else 0.02) as hub:
        results, errors = ask(hub, tmp_path, *((name,) for name in names for _ in range(2)), stop_at=": 0.")
    for (says, said), (later, _) in zip(results[::2], results[1::2], strict=True):
        assert says.startswith("Loading was stopped.")
        assert not any(line.startswith("Loaded") for line in said)
        assert len(later) == 6
    whole = sum(file.stat().st_size for name in names for file in (models / name).glob("*.safetensors"))
    assert whole < sum(hub.sent)
    if xet:  # a plain file comes in pieces of 10 MB, so here in one
        assert sum(hub.sent) < 1.8 * whole, "the first time, the rest was fetched all the same"
    assert errors == ""


@pytest.mark.slow
def test_a_download_that_stalls_can_be_stopped_and_nobody_waits_for_it(models, tmp_path) -> None:
    with serving(models, xet=True, stalls=True) as hub:
        done = forked.run(STALL, **hub.variables, HF_HOME=str(tmp_path))
    assert done.stdout.startswith("stopped\nThere is no folder"), (done.stdout, done.stderr)


@pytest.mark.slow
def test_weights_that_do_not_arrive_are_not_called_damaged(models, tmp_path) -> None:
    """As behind a firewall that lets only the hub itself through."""
    with serving(models, xet=True, refusals={"xet": 403}) as hub:
        results, errors = ask(hub, tmp_path, ("some/whole",), ("some/large",))
    for message, _ in results:  # in one file, and in several
        assert all(word in message for word in ("did not arrive", "HF_HUB_DISABLE_XET=1", "403 Forbidden")), message
    assert errors == ""


FAILED = OSError("Can't load the model for 'a/b'.")


def status(code: int) -> HfHubHTTPError:
    return HfHubHTTPError("no", response=httpx.Response(code, request=httpx.Request("HEAD", "http://hub")))


def wrapped(error: Exception) -> Exception:
    """As transformers raises it."""
    outer = OSError(*FAILED.args)
    outer.__cause__ = error
    return outer


@pytest.mark.parametrize(
    ("error", "refused", "words"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), None, ("do not fit on this disk", "HF_HOME")),
        (wrapped(RuntimeError("IO Error: No space left on device")), None, ("do not fit on this disk",)),
        (FAILED, TimeoutError("timed out"), ("gave no answer", "in a minute", "TimeoutError")),
        (FAILED, status(401), ("answered 401", "hf auth login")),
        (FAILED, status(503), ("answered 503", "in a minute")),
        (FAILED, None, ("did not arrive", "HF_HUB_DISABLE_XET")),
    ],
)
def test_absent_weights_are_explained(monkeypatch, error: Exception, refused: Exception | None, words) -> None:
    monkeypatch.setattr(checkpoint_files, "hub_refusal", lambda hub, file: refused)
    monkeypatch.setattr(checkpoint_files, "try_to_load_from_cache", lambda hub, file: None)
    with pytest.raises(ModelLoadError) as caught:
        checkpoint_files.refuse_absent_weights("a/b", "a/b", error)
    assert all(word in str(caught.value) for word in words)


INDEX = checkpoint_files.SAFE_WEIGHTS_INDEX_NAME


@pytest.mark.parametrize(
    ("index", "parts", "absent"),
    [
        (None, [checkpoint_files.SAFE_WEIGHTS_NAME], False),  # the device may have had too little memory
        ('{"weight_map": {"a": "1", "b": "2"}}', ["1", "2"], False),
        ('{"weight_map": {"a": "1", "b": "2"}}', ["1"], True),  # the download broke off
        *((damaged, [], False) for damaged in ('{"weight_map": [', '{"weight_map": []}', "[]", "[" * 100_000)),
    ],
    ids=["whole", "all", "some", "torn", "no names", "no index", "deep"],
)
def test_the_hub_is_asked_only_about_weights_that_are_absent(monkeypatch, tmp_path, index, parts, absent) -> None:
    """A damaged index is not an absent one."""
    cached, asked = {part: f"/cache/{part}" for part in parts}, []
    if index is not None:
        (tmp_path / "index.json").write_text(index, "utf-8")
        cached[INDEX] = str(tmp_path / "index.json")
    monkeypatch.setattr(checkpoint_files, "hub_refusal", lambda hub, file: asked.append(file))
    monkeypatch.setattr(checkpoint_files, "try_to_load_from_cache", lambda hub, it: cached.get(it))
    with pytest.raises(ModelLoadError, match="did not arrive") if absent else nullcontext():
        checkpoint_files.refuse_absent_weights("a/b", "a/b", MemoryError())
    assert bool(asked) == absent


def test_a_hub_is_waited_for_a_few_seconds_and_asked_anonymously_for_others(monkeypatch) -> None:
    """A configuration may come without its size."""
    asked: list[dict[str, Any]] = []
    found = SimpleNamespace(size=None)
    monkeypatch.setattr(checkpoint_files, "get_hf_file_metadata", lambda url, **how: asked.append(how) or found)
    assert [checkpoint_files.hub_refusal("a/b", token) for token in (False, None)] == [None, None]
    assert asked == [{"token": token, "timeout": checkpoint_files.HUB_TIMEOUT_SECONDS} for token in (False, None)]


@pytest.mark.slow
def test_what_is_wrong_with_a_model_in_the_cache_is_said_without_a_network(models, tmp_path) -> None:
    """That no hub answers is not to blame."""
    with serving(models) as hub:
        [(says, _)], _ = ask(hub, tmp_path, ("some/target",))
    assert len(says) == 6
    weights = max((tmp_path / "hub/models--some--target/blobs").iterdir(), key=lambda file: file.stat().st_size)
    weights.write_bytes(weights.read_bytes()[:-100])
    with serving(models) as hub:
        results, _ = ask(hub, tmp_path, ("some/target",), ("some/draft",), HF_HUB_OFFLINE="1")
    assert hub.asked == []
    (damaged, _), (absent, _) = results
    assert damaged.startswith("some/target could not be loaded: ")
    assert "its files are damaged or incomplete" in damaged
    assert absent.startswith("The hub did not give the configuration of some/draft.")
