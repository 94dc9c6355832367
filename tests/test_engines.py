"""Which pairs are offered, which fit, and which stay loaded."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import torch

import lab.registry as engines_module
from lab import EngineConfig, LabError, SamplingParams
from lab.engine.engine import Engine
from lab.memory.model_memory import find_model, known_models
from lab.models import loader as loading
from lab.models.load_progress import Loading, LoadingCancelled, track_loading
from lab.registry import EMBEDDED, LISTED, USABLE, Engines, Pair, fitting_pairs, named_pair, needed_bytes
from lab.trace.events import RunStarted
from lab.util.device_memory import CAPTURING
from tests import tiny_models
from tests.waiting import until

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


@pytest.mark.parametrize(("target", "draft"), LISTED.items())
def test_listed_pairs_are_known_and_share_a_vocabulary_size(target: str, draft: str) -> None:
    models = known_models()[target], known_models()[draft]
    assert models[0].shape.vocabulary == models[1].shape.vocabulary
    assert models[0].parameters > 2 * models[1].parameters
    assert all(model.hub and "/" in model.hub for model in models)


@pytest.mark.parametrize("cyclic", [False, True])
def test_no_large_engine_is_dropped_during_a_capture(folders, cyclic) -> None:
    """Its graphs would be destroyed with it."""
    engines, capturing = Engines(any_pair=True, device="cpu"), []
    engine = engines(pair(folders))
    weakref.finalize(engine, lambda: capturing.append(CAPTURING.locked()))
    if cyclic:
        engine.itself = engine
    del engine
    engines(pair(folders, draft=""))
    assert capturing == [True]  # by the one who drops it, so by nobody who captures
    assert not CAPTURING.locked()


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
    assert fitting_pairs(device="cpu") == {}


def test_a_pair_needs_at_least_the_memory_of_its_weights(folders) -> None:
    model = find_model(folders["target"])
    assert needed_bytes([model], torch.float32) > 4 * model.parameters
    assert needed_bytes([model], torch.bfloat16) < needed_bytes([model, model], torch.bfloat16)
    large = known_models()["llama-3.1-8b"]
    cache = 2048 * 32 * 8 * 2 * 128 * 2  # of 2,048 tokens, 32 layers with 8 heads, a key and a value of 128 numbers
    assert needed_bytes([large], torch.bfloat16) == pytest.approx((2 * large.parameters + cache) / USABLE, rel=1e-6)


def test_on_a_cpu_a_pair_needs_memory_for_what_the_step_in_c_copies() -> None:
    model = find_model(loading.WEIGHTS / "target")  # whose embedding table is the head, so all of it is copied
    more = needed_bytes([model], torch.float32, in_c=True) - needed_bytes([model], torch.float32)
    assert more == pytest.approx(2 * model.parameters / USABLE, rel=0.01)
    assert needed_bytes([model], torch.bfloat16, in_c=True) == needed_bytes([model], torch.bfloat16)
    untied = known_models()["llama-3.1-8b"]
    assert 46e9 < needed_bytes([untied], torch.float32, in_c=True) * USABLE < 48e9


def test_a_pair_is_refused_on_a_cpu_without_room_for_the_copy(monkeypatch) -> None:
    engines = Engines(any_pair=True, device="cpu")
    places = named_pair(str(loading.WEIGHTS / "target"), "")
    without = needed_bytes([find_model(places.target)], torch.float32)
    monkeypatch.setattr(engines_module, "free_bytes", lambda device: 1.2 * without)
    with pytest.raises(LabError, match=r"target needs about 0\.1 GB of memory on cpu"):
        engines(places)


def test_a_pair_from_folders_decodes_as_its_target_alone(folders) -> None:
    engine = Engines(any_pair=True, device="cpu")(pair(folders))
    assert engine.generate("A fox", DRAFT, GREEDY).token_ids == engine.generate("A fox", None, GREEDY).token_ids
    assert engine.generate("A fox", DRAFT, GREEDY).metrics.draft_acceptance_rate > 0


def test_one_other_pair_is_kept_and_the_embedded_ones_stay_loaded(folders) -> None:
    engines = Engines(any_pair=True, device="cpu")
    embedded, first = engines("matched"), weakref.ref(engines(pair(folders)))
    assert engines(pair(folders)) is first()
    second = engines(pair(folders, draft=""))
    assert first() is None
    assert engines(pair(folders, draft="")) is second
    assert engines("matched") is embedded
    assert (
        engines(named_pair("", "matched")).draft.name == embedded.draft.name
    )  # an embedded draft has no folder to look for


@pytest.mark.parametrize(
    ("target", "draft", "says"),
    [
        ("target", "stranger", "their tokenizers differ"),
        ("broken", "draft", "could not be loaded"),
    ],
)
def test_a_pair_that_fails_to_load_leaves_the_previous_one_working(folders, target: str, draft: str, says: str) -> None:
    engines = Engines(any_pair=True, device="cpu")
    before = engines(pair(folders))
    with pytest.raises(LabError, match=says):
        engines(pair(folders, target, draft))
    assert engines(pair(folders)) is before
    assert before.generate("A fox", DRAFT, GREEDY).reason == "length"


def test_cancelling_a_load_leaves_the_previous_pair_working(folders) -> None:
    engines = Engines(any_pair=True, device="cpu")
    before, stopped = engines(pair(folders)), threading.Event()
    stopped.set()
    with track_loading(Loading(stopped)), pytest.raises(LoadingCancelled):
        engines(pair(folders, draft=""))
    assert engines(pair(folders)) is before


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


def test_a_pair_that_does_not_fit_is_refused_before_it_is_loaded(folders, monkeypatch) -> None:
    engines = Engines(any_pair=True, device="cpu")
    embedded = engines("matched")
    monkeypatch.setattr(engines_module, "free_bytes", lambda device: 100_000)
    monkeypatch.setattr(engines_module, "load_engine", None)
    with pytest.raises(LabError, match=r"target \+ draft needs about 0.0 GB of memory on cpu, and 0.0 GB are free"):
        engines(pair(folders))
    assert engines("matched") is embedded


def test_a_pair_is_unloaded_for_the_next_if_both_do_not_fit(folders, monkeypatch) -> None:
    engines = Engines(any_pair=True, device="cpu")
    first = weakref.ref(engines(pair(folders)))
    monkeypatch.setattr(engines_module, "free_bytes", lambda device: 100_000 if first() else 10**9)
    engines(pair(folders, draft=""))
    assert first() is None
    assert engines(pair(folders)).draft is not None


def test_any_failure_of_a_load_is_raised_to_those_waiting_for_it(monkeypatch) -> None:
    """A panic in a library's Rust code is not an Exception."""

    class Panic(BaseException):
        pass

    def panics(*_: object, **__: object) -> None:
        raise Panic

    raised, engines = [], Engines(device="cpu")

    def ask() -> None:
        try:
            engines("matched")
        except BaseException as error:
            raised.append(error)

    monkeypatch.setattr(engines_module, "load_engine", panics)
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(30)
    assert [type(error) for error in raised] == [Panic]


def test_a_load_can_be_retried_after_no_thread_could_be_started(monkeypatch) -> None:
    def no_thread(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    engines, aside = Engines(device="cpu"), engines_module.in_background
    monkeypatch.setattr(engines_module, "in_background", no_thread)
    with pytest.raises(RuntimeError, match="thread"):
        engines("matched")
    monkeypatch.setattr(engines_module, "in_background", aside)
    stopped = threading.Event()
    given_up = threading.Timer(30, stopped.set)
    given_up.start()
    with track_loading(Loading(stopped)):
        assert engines("matched").generate("A fox", None, GREEDY).reason == "length"
    given_up.cancel()


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


def test_cancelling_returns_at_once_and_the_next_caller_waits_for_the_load(monkeypatch) -> None:
    engines, stopped, goes_on = Engines(device="cpu"), threading.Event(), threading.Event()
    at_once, loads = [], engines_module.load_engine

    def load(*some, **how) -> Engine:
        at_once.append(engines._loading.locked())
        stopped.set()
        assert goes_on.wait(30)
        return loads(*some, **how)

    monkeypatch.setattr(engines_module, "load_engine", load)
    with track_loading(Loading(stopped)), pytest.raises(LoadingCancelled):
        engines("matched")
    assert engines._loading.locked()
    goes_on.set()
    assert engines("matched").generate("A fox", DRAFT, GREEDY).reason == "length"
    assert at_once == [True, True]


def test_a_pair_unloaded_for_a_cancelled_one_is_loaded_again(folders, monkeypatch) -> None:
    engines, stopped = Engines(any_pair=True, device="cpu"), threading.Event()
    first, loads = weakref.ref(engines(pair(folders))), engines_module.load_engine

    def load(*some, **how) -> Engine:
        stopped.set()
        return loads(*some, **how)

    monkeypatch.setattr(engines_module, "load_engine", load)
    monkeypatch.setattr(engines_module, "free_bytes", lambda device: 100_000 if first() else 10**9)
    said = "those unloaded to make room are then loaded again"
    with track_loading(Loading(stopped)), pytest.raises(LoadingCancelled, match=said):
        engines(pair(folders, draft=""))
    assert first() is None
    assert engines(pair(folders)).generate("A fox", DRAFT, GREEDY).reason == "length"


def test_only_offered_pairs_are_available_by_default(folders) -> None:
    engines = Engines(device="cpu")
    with pytest.raises(LabError, match="not available here"):
        engines(pair(folders))
    for name in ("nobody", "../../etc", ""):
        with pytest.raises(LabError, match="there are matched, mismatched"):
            engines(name)


@pytest.mark.parametrize("there", ["/nonexistent", "./nonexistent", "../nonexistent", "/nonexistent/one/two"])
def test_a_missing_folder_is_reported(there: str) -> None:
    for pair in (named_pair(there, ""), named_pair("", there)):
        with pytest.raises(LabError, match=f"There is no folder '{there}' here"):
            Engines(any_pair=True, device="cpu")(pair)


def test_a_pair_is_labelled_by_its_folder_however_the_path_is_written(folders, monkeypatch) -> None:
    monkeypatch.chdir(folders["target"])
    assert [named_pair(name, "").label for name in (".", "../target", "../draft/..", "owner/model")] == [
        "target",
        "target",
        folders["target"].parent.name,
        "model",
    ]


def test_a_folder_may_be_given_with_a_tilde_or_quotes(folders, monkeypatch) -> None:
    monkeypatch.setenv("HOME", str(folders["target"].parent))
    named = named_pair(str(folders["target"]), str(folders["draft"]))
    assert named_pair("~/target", "~/draft") == named
    assert named_pair(f' "{folders["target"]}"', f"'{folders['draft']}' ") == named
    with pytest.raises(LabError, match="Name a target model"):
        named_pair('""', " ")
    with pytest.raises(LabError, match=r"There is no folder '.*/nobody' here"):
        Engines(any_pair=True, device="cpu")(named_pair("~/nobody", ""))


@pytest.mark.parametrize(
    "address", ["https://hub.example/some/model-1.5B", "http://hub.example/some/model-1.5B/tree/main"]
)
def test_the_address_of_a_page_is_refused_with_the_hub_id_to_use(address: str) -> None:
    with pytest.raises(LabError, match=r"is the address of a page\. Write it as some/model-1\.5B\."):
        Engines(any_pair=True, device="cpu")(named_pair(address, ""))


def test_no_two_runs_of_a_server_have_the_same_number(folders) -> None:
    """Whoever watches several engines tells their runs apart by it."""
    begun: list[int] = []

    class Listening:
        def watch(self, model: str):
            return lambda owner, seconds, event: begun.append(owner) if isinstance(event, RunStarted) else None

        def add(self, model: str, engine: Engine) -> None:
            pass

    monitors = [Listening()]
    engines = Engines(any_pair=True, device="cpu", monitors=monitors)
    others = Engines(any_pair=True, device="cpu", monitors=monitors)  # as those of the lessons beside one's own pair
    some = [engines(pair(folders)), engines(pair(folders, draft="")), others(pair(folders))]
    for engine in (*some, *some):
        engine.generate("A fox", EngineConfig(), GREEDY)
    assert begun == list(range(begun[0], begun[0] + 6))


def test_monitors_tell_pairs_of_one_name_apart(folders, tmp_path) -> None:
    (tmp_path / "target").symlink_to(folders["target"], target_is_directory=True)
    (tmp_path / "Matched").symlink_to(folders["target"], target_is_directory=True)

    class Listening:
        def __init__(self) -> None:
            self.watched, self.added = [], []

        def watch(self, model: str) -> Callable[..., None]:
            self.watched.append(model)
            return lambda *event: None

        def add(self, model: str, engine: Engine) -> None:
            self.added.append(model)

    monitor = Listening()
    engines = Engines(any_pair=True, device="cpu", monitors=[monitor])
    for place in (folders["target"], tmp_path / "target", folders["target"], tmp_path / "Matched"):
        engines(named_pair(str(place), ""))
    assert monitor.watched == monitor.added == ["target", "target (2)", "target", "Matched (2)"]


def test_a_pair_needs_the_name_of_a_target() -> None:
    with pytest.raises(LabError, match="Name a target model"):
        named_pair("", "")
    assert named_pair("", "mismatched") == Pair("mismatched", None, "mismatched")
    assert named_pair("a/very" + "/long" * 2000, None).draft is None


def test_code_that_comes_with_a_model_never_runs(folders, tmp_path) -> None:
    evil = tmp_path / "evil"
    evil.mkdir()
    (evil / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    (evil / "config.json").write_text('{"model_type": "own", "auto_map": {"AutoConfig": "own.Config"}}')
    with pytest.raises(LabError):
        Engines(any_pair=True, device="cpu")(named_pair(str(evil), ""))
    assert not (tmp_path / "ran").exists()
    assert set(EMBEDDED) == {"matched", "mismatched"}


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), MemoryError()], ids=["gpu", "python"])
def test_a_load_that_runs_out_of_memory_leaves_the_previous_pair_working(monkeypatch, error: Exception) -> None:
    engines = Engines(any_pair=True, device="cpu", dtype="float32")
    before = engines("matched").generate("A fox", DRAFT, GREEDY).token_ids

    def raising(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(loading.AutoModelForCausalLM, "from_pretrained", raising)
    with pytest.raises(LabError, match=r"stories could not be loaded: the device ran out of memory\. Choose a smaller"):
        engines("mismatched")
    assert engines("matched").generate("A fox", DRAFT, GREEDY).token_ids == before
    monkeypatch.undo()
    assert engines("mismatched").generate("A fox", DRAFT, GREEDY).token_ids == before
