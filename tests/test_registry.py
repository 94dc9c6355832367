"""Pairs of models that are offered, that fit, and that stay loaded."""

from __future__ import annotations

import gc
import threading
import weakref
from contextlib import nullcontext, suppress
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

import lab.registry as engines_module
from lab import EngineConfig, LabError, SamplingParams
from lab.engine.engine import Engine
from lab.memory.model_memory import find_model, known_models
from lab.models import loader as loading
from lab.models.load_progress import Loading, LoadingCancelled, track_loading
from lab.registry import EMBEDDED, LISTED, USABLE_SHARE, Engines, Pair, fitting_pairs, named_pair, needed_bytes
from lab.util.device_memory import CAPTURING
from tests import tiny_models
from tests.models.test_numerical_check import random_model
from tests.waiting import until

pytestmark = pytest.mark.slow

GREEDY = SamplingParams(max_tokens=8, ignore_eos=True)
DRAFT = EngineConfig(speculative="draft")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Saved models: a matching target and draft, one with another tokenizer, one without weights."""
    root = tmp_path_factory.mktemp("models")
    model = tiny_models.random_model("llama")
    made = {"target": model, "draft": tiny_models.perturbed(model, 0.02), "stranger": model}
    for name, it in made.items():
        it.save_pretrained(root / name)
        tiny_models.tokenizer().save_pretrained(root / name)
    vocabulary = root / "stranger/tokenizer.json"
    vocabulary.write_text(vocabulary.read_text("utf-8").replace("<|end|>", "<|over|>"), "utf-8")
    (root / "broken").mkdir()
    (root / "broken/config.json").write_text((root / "target/config.json").read_text())
    return {name: root / name for name in (*made, "broken")}


def pair(folders: dict[str, Path], target: str = "target", draft: str = "draft") -> Pair:
    return named_pair(str(folders[target]), str(folders[draft]) if draft else "")


def test_a_device_is_offered_the_pairs_that_fit_it(monkeypatch) -> None:
    def offered(gigabytes: float) -> list[str]:
        device = type("Device", (), {"total_memory": int(gigabytes * 1e9), "major": 9, "minor": 0})
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: device)
        return list(fitting_pairs(device="cuda"))

    assert offered(1) == []
    assert offered(6) == ["smollm2-1.7b"]
    assert offered(16) == ["smollm2-1.7b", "llama-3.2-3b", "qwen3-4b"]
    assert offered(24) == ["smollm2-1.7b", "llama-3.2-3b", "qwen3-4b", "qwen3-8b", "llama-3.1-8b"]
    assert offered(192) == list(LISTED)


def test_a_cpu_is_offered_the_pairs_that_fit_the_free_memory_with_their_sizes(monkeypatch) -> None:
    monkeypatch.setattr("lab.registry.free_bytes", lambda device: 14e9)
    found = fitting_pairs(device="cpu")
    assert list(found) == ["smollm2-1.7b"]
    pair = found["smollm2-1.7b"]
    assert pair.has_draft
    assert 3.6e9 < pair.disk_bytes < 3.8e9 < pair.memory_bytes <= 14e9
    monkeypatch.setattr("lab.registry.free_bytes", lambda device: 1e9)
    assert fitting_pairs(device="cpu") == {}


def test_cancelling_does_not_wait_for_a_hub_that_does_not_answer(folders, monkeypatch) -> None:
    engines, stopped, answers = Engines(any_pair=True, device="cpu"), threading.Event(), threading.Event()
    answered: list[bool] = []
    monkeypatch.setattr(engines_module, "find_model", lambda where, **how: answered.append(answers.wait(60)))
    threading.Timer(0.3, stopped.set).start()
    with track_loading(Loading(stopped)), pytest.raises(LoadingCancelled):
        engines(named_pair("somebody/model", ""))
    assert engines("matched").generate("A fox", None, GREEDY).reason == "length"
    assert not answered
    answers.set()


def test_during_a_load_others_use_loaded_pairs_and_can_stop_waiting(folders, monkeypatch) -> None:
    engines, stopped = Engines(any_pair=True, device="cpu"), threading.Event()
    there, loads = engines(pair(folders)), engines_module.load_engine
    begun, goes_on = threading.Event(), threading.Event()

    def load(*some, **how) -> Engine:
        begun.set()
        assert goes_on.wait(60)
        return loads(*some, **how)

    monkeypatch.setattr(engines_module, "load_engine", load)
    loaded = []
    first, second = (threading.Thread(target=lambda: loaded.append(engines(pair(folders, draft="")))) for _ in "ab")
    first.start()
    assert begun.wait(30)
    second.start()  # which asks for the same
    assert engines(pair(folders)) is there
    threading.Timer(0.3, stopped.set).start()
    with track_loading(Loading(stopped)), pytest.raises(LoadingCancelled):
        engines(named_pair(str(folders["target"]), str(folders["target"])))
    assert first.is_alive()
    goes_on.set()
    first.join()
    second.join()
    assert len(set(loaded)) == 1
    assert len(loaded) == 2


def test_nothing_of_a_failed_load_is_kept(monkeypatch) -> None:
    """Not even until the garbage collector runs: it may be most of a GPU's memory."""
    engines, made = Engines(device="cpu"), []

    def load(*_: object, **__: object) -> None:
        model = torch.nn.Linear(1, 1)
        made.append(weakref.ref(model))
        raise LabError("Their tokenizers differ.")

    def ask() -> None:
        with suppress(LabError):
            engines("matched")

    monkeypatch.setattr(engines_module, "load_engine", load)
    gc.disable()
    try:
        ask()
        until(lambda: made[0]() is None)  # the loading thread has to end first
    finally:
        gc.enable()


@pytest.mark.parametrize("cyclic", [False, True])
def test_one_other_pair_is_kept_and_the_embedded_ones_stay_loaded(folders, cyclic) -> None:
    """Its graphs are destroyed with it, which must not happen during a capture."""
    engines, capturing = Engines(any_pair=True, device="cpu"), []
    embedded, first = engines("matched"), engines(pair(folders))
    assert engines(pair(folders)) is first
    assert first.generate("A fox", DRAFT, GREEDY).token_ids == first.generate("A fox", None, GREEDY).token_ids
    weakref.finalize(first, lambda: capturing.append(CAPTURING.locked()))
    if cyclic:
        first.itself = first
    del first
    second = engines(pair(folders, draft=""))
    assert capturing == [True]  # by the one who drops it, so by nobody who captures
    assert not CAPTURING.locked()
    assert engines(pair(folders, draft="")) is second
    assert engines("matched") is embedded
    assert engines(named_pair("", "matched")).draft.name == embedded.draft.name  # which has no folder to look for


def test_a_pair_that_fails_to_load_leaves_the_previous_one_working(folders, monkeypatch) -> None:
    engines, stopped = Engines(any_pair=True, device="cpu"), threading.Event()
    before = engines(pair(folders))
    for target, draft, word in (("target", "stranger", "tokenizers differ"), ("broken", "draft", "not be loaded")):
        with pytest.raises(LabError, match=word):
            engines(pair(folders, target, draft))
    stopped.set()
    with track_loading(Loading(stopped)), pytest.raises(LoadingCancelled):
        engines(pair(folders, draft=""))
    for error in (torch.OutOfMemoryError("CUDA out of memory"), MemoryError()):
        monkeypatch.setattr(loading.AutoModelForCausalLM, "from_pretrained", Mock(side_effect=error))
        with pytest.raises(LabError, match="ran out of memory"):
            engines("mismatched")
    assert engines(pair(folders)) is before
    assert before.generate("A fox", DRAFT, GREEDY).reason == "length"


def test_memory_for_weights_cache_and_the_copy_of_the_step_in_c() -> None:
    model, large = find_model(loading.WEIGHTS / "target"), known_models()["llama-3.1-8b"]
    half, whole = needed_bytes([model], torch.bfloat16), needed_bytes([model], torch.float32)
    assert 4 * model.parameters < whole
    assert half < needed_bytes([model, model], torch.bfloat16)
    cache = 2048 * 32 * 8 * 2 * 128 * 2  # of 2,048 tokens, 32 layers with 8 heads, a key and a value of 128 numbers
    assert needed_bytes([large], torch.bfloat16) * USABLE_SHARE == pytest.approx(2 * large.parameters + cache, rel=1e-6)
    # The embedded target's embedding table is its head, so all of it is copied.
    copied = needed_bytes([model], torch.float32, in_c=True)
    assert copied - whole == pytest.approx(2 * model.parameters / USABLE_SHARE, rel=0.01)
    assert needed_bytes([model], torch.bfloat16, in_c=True) == half
    assert 46e9 < needed_bytes([large], torch.float32, in_c=True) * USABLE_SHARE < 48e9


@pytest.mark.parametrize("room", [0.0, 1.2], ids=["none", "none for the copy"])
def test_a_pair_that_does_not_fit_is_refused_before_it_is_loaded(monkeypatch, room: float) -> None:
    engines, places = Engines(any_pair=True, device="cpu"), named_pair(str(loading.WEIGHTS / "target"), "")
    embedded, weights = engines("matched"), needed_bytes([find_model(places.target)], torch.float32)
    monkeypatch.setattr(engines_module, "free_bytes", lambda device: room * weights)
    monkeypatch.setattr(engines_module, "load_engine", None)
    with pytest.raises(LabError, match=r"target needs about 0\.1 GB of memory on cpu"):
        engines(places)
    assert engines("matched") is embedded


@pytest.mark.parametrize("cancelled", [False, True])
def test_a_pair_is_unloaded_for_the_next_if_both_do_not_fit(folders, monkeypatch, cancelled: bool) -> None:
    engines, stopped, loads = Engines(any_pair=True, device="cpu"), threading.Event(), engines_module.load_engine
    first = weakref.ref(engines(pair(folders)))

    def load(*some, **how) -> Engine:
        if cancelled:
            stopped.set()
        return loads(*some, **how)

    monkeypatch.setattr(engines_module, "load_engine", load)
    monkeypatch.setattr(engines_module, "free_bytes", lambda device: 100_000 if first() else 10**9)
    with track_loading(Loading(stopped)), pytest.raises(LoadingCancelled) if cancelled else nullcontext():
        engines(pair(folders, draft=""))
    assert first() is None
    assert engines(pair(folders)).generate("A fox", DRAFT, GREEDY).reason == "length"


def test_pairs_are_named_by_folders_hub_ids_or_the_embedded_ones(folders, monkeypatch) -> None:
    root = folders["target"].parent
    monkeypatch.chdir(folders["target"])
    monkeypatch.setenv("HOME", str(root))
    labels = [named_pair(name, "").label for name in (".", "../target", "../draft/..", "owner/model")]
    assert labels == ["target", "target", root.name, "model"]
    named = named_pair(str(folders["target"]), str(folders["draft"]))
    assert named_pair("~/target", "~/draft") == named
    assert named_pair(f' "{folders["target"]}"', f"'{folders['draft']}' ") == named
    assert named_pair("", "mismatched") == Pair("mismatched", None, "mismatched")
    assert named_pair("a/very" + "/long" * 2000, None).draft is None
    for nothing in (("", ""), ('""', " ")):
        with pytest.raises(LabError, match="Name a target model"):
            named_pair(*nothing)


def test_pairs_that_are_not_offered_or_not_there_are_refused(folders) -> None:
    engines, any_pair = Engines(device="cpu"), Engines(any_pair=True, device="cpu")
    assert set(EMBEDDED) == {"matched", "mismatched"}
    with pytest.raises(LabError, match="not available here"):
        engines(pair(folders))
    for name in ("nobody", "../../etc", ""):
        with pytest.raises(LabError, match="there are matched, mismatched"):
            engines(name)
    for there in ("/nonexistent", "./nonexistent", "../nonexistent", "~/nobody"):
        for missing in (named_pair(there, ""), named_pair("", there)):
            with pytest.raises(LabError, match="There is no folder"):
                any_pair(missing)
    with pytest.raises(LabError, match=r"Write it as some/model-1\.5B\."):
        any_pair(named_pair("http://hub.example/some/model-1.5B/tree/main", ""))


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("mistral", {"sliding_window": 9}),
        ("lfm2", {"layer_types": ["conv", "full_attention", "conv"]}),
        ("mixtral", {}),
    ],
)
def test_every_kind_of_model_that_the_engine_decodes_can_be_opened(tmp_path, kind, more) -> None:
    random_model(kind, **more).save_pretrained(tmp_path)
    tiny_models.tokenizer().save_pretrained(tmp_path)
    engine = Engines(any_pair=True, device="cpu")(named_pair(str(tmp_path), ""))
    run = engine.generate("A fox", EngineConfig(), GREEDY)
    assert run.token_ids == tiny_models.continuation(engine, run.prompt_token_ids, 8)
