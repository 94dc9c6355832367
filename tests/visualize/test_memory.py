"""The Memory page's inputs, its text, and its charts, by their data."""

from __future__ import annotations

import itertools
import json
import math
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from lab.memory.capacity import POLICIES
from lab.memory.model_memory import ModelInfo, deployment_notices, known_models
from lab.models.loader import ModelLoadError
from lab.settings import KV_DTYPES
from tests.waiting import until
from visualize.charts import memory_charts as memory
from visualize.memory_inputs import FORM, OTHER, MemoryInputs
from visualize.pages.memory import hub_models as hub
from visualize.pages.memory.memory_report import formula, in_every_format, readouts, sheet, size
from visualize.pages.memory.page import Found, begin_look_up, look_up_pending
from visualize.pages.memory.page import answer as page_answer

LLAMA = known_models()["llama-3.1-8b"]


def answer(**changes: object) -> dict:
    """The page's final answer for these inputs, once the hub was asked."""
    found: Found = {}
    inputs = MemoryInputs(**changes)
    begin_look_up(found, inputs.model, inputs.hub)
    look_up_pending(found)
    line = page_answer(found, *(getattr(inputs, name) for name in FORM.names))
    assert "<" not in line
    return json.loads(line)


@pytest.mark.slow
def test_every_choice_has_an_answer() -> None:
    """Every model with two formats of the cache, and every format with several models."""
    models = [model for model in FORM["model"].options if model != OTHER]
    choices = (itertools.cycle(FORM[name].options) for name in ("weights", "kv_dtype"))
    for model, weights, kv_dtype in zip([*models, *models], *choices, strict=False):
        assert answer(model=model, weights=weights, kv_dtype=kv_dtype)["charts"]
    for gpu in FORM["gpu"].options:
        assert answer(gpu=gpu)["charts"]


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        ({"mean": 5000}, "mean length must be between 1 token and the longest, 4,096, not 5,000"),
        ({"mean": 0}, "Mean length must be a whole number from 1 to"),
        ({"longest": 10**9}, "Longest must be a whole number from 1 to 10,000,000"),
        ({"longest": 4096.5}, "Longest must be a whole number"),
        ({"batch": float("nan")}, "Sequences in a batch must be a whole number from 1 to 1,000,000"),
        ({"gpu": OTHER, "memory": -1}, "Memory, GiB must be a number from 0.1 to 100,000"),
        ({"set_aside": 99}, "Reserved, % must be a whole number from 0 to 90"),
        ({"model": OTHER}, "Write the hub id"),
        ({"model": OTHER, "hub": "../../etc/passwd"}, "'../../etc/passwd' cannot be used as a hub id"),
        ({"model": OTHER, "hub": "<img src=x onerror=alert(1)>\u202e"}, "cannot be used as a hub id"),
    ],
)
def test_invalid_input_is_explained(inputs: dict, says: str) -> None:
    problem = answer(**inputs)["problem"]
    assert says in problem
    assert problem.isprintable()


def test_the_hub_is_asked_only_once_for_the_same_id(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def find(hub: str, *, open_to_all: bool = False) -> ModelInfo:
        asked.append((hub, open_to_all))
        return replace(LLAMA, name=hub)

    monkeypatch.setattr("visualize.pages.memory.hub_models.find_model", find)
    found: Found = {}
    values = [getattr(MemoryInputs(model=OTHER, hub="some/model"), name) for name in FORM.names]
    assert "press Enter" in json.loads(page_answer(found, *values))["problem"]
    begin_look_up(found, OTHER, "some/model")
    waits = json.loads(page_answer(found, *values))
    assert "some/model" in waits["status"]
    assert waits["within"] > 0
    for _ in range(2):
        look_up_pending(found)
        assert json.loads(page_answer(found, *values))["about"].startswith("some/model: 32 layers")
    assert asked == [("some/model", True)]  # anyone may ask, so not with the server owner's credentials


@pytest.fixture
def answers() -> threading.Event:
    """Set while the hub answers."""
    answers = threading.Event()
    answers.set()
    return answers


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, answers: threading.Event) -> Iterator[list[str]]:
    """The ids asked of a hub that has none of them."""
    asked: list[str] = []

    def find(id: str, *, open_to_all: bool) -> ModelInfo:
        asked.append(id)
        assert answers.wait(30)
        raise ModelLoadError(f"There is no {id}.")

    monkeypatch.setattr(hub, "find_model", find)
    monkeypatch.setattr(hub, "_failed", {})
    yield asked
    assert hub._asking == 0


def said(id: str) -> str:
    with pytest.raises(ModelLoadError) as refusal:
        hub.look_up(id)
    return str(refusal.value)


def test_a_failed_look_up_is_not_repeated_at_once(asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert said("nobody/nothing") == "There is no nobody/nothing."
    assert said("nobody/nothing") == "There is no nobody/nothing. It was asked for less than a minute ago."
    assert asked == ["nobody/nothing"]
    monkeypatch.setattr(hub, "REMEMBERED", 0.01)
    time.sleep(0.02)
    said("nobody/else")
    assert list(hub._failed) == ["nobody/else"]
    said("nobody/nothing")
    assert len(asked) == 3


def test_hub_requests_are_limited_and_those_refused_say_so(asked: list[str], answers: threading.Event) -> None:
    answers.clear()
    with ThreadPoolExecutor(12) as pool:
        reported = [pool.submit(said, f"nobody/{number}") for number in range(12)]
        try:
            until(lambda: sum(one.done() for one in reported) == 12 - hub.AT_ONCE)
        finally:
            answers.set()
    assert sum("the most at once" in one.result() for one in reported) == 12 - hub.AT_ONCE
    assert len(asked) == hub.AT_ONCE
    assert "the most at once" not in said("nobody/12")


@pytest.mark.parametrize("id", ["gpt2", "../../etc", "a/b/c", "x" * 100_000])
def test_an_invalid_hub_id_is_never_asked_for(asked: list[str], id: str) -> None:
    assert "must be owner/name" in said(id)
    assert asked == []
    assert not hub._failed


def test_formula_and_readouts_show_the_same_numbers() -> None:
    chosen = MemoryInputs(kv_dtype="int4").deployment(LLAMA)
    rows = {row["name"]: row for row in formula(chosen, 32)}
    shown = {row["label"]: row["value"] for row in readouts(chosen, 32)}
    assert (rows["vector"]["words"], rows["vector"]["numbers"]) == (
        "bytes of 128 numbers in INT4 + of their scales",
        "64 + 8",
    )
    assert "numbers in BF16 +" in formula(MemoryInputs().deployment(LLAMA), 32)[0]["words"]
    assert rows["token"]["numbers"] == "32 × 8 × 2 × 72"
    assert math.prod(map(int, rows["token"]["numbers"].split(" × "))) == chosen.token_bytes
    assert rows["token"]["result"] == f"{chosen.token_bytes:,} B = {shown['KV per token']}"
    pairs = {"batch": "batch of 32", "weights": "weights", "left for KV": "left for KV"}
    pairs |= {"contiguous": "contiguous", "paged": "paged", "sequence": "mean sequence"}
    for row, readout in pairs.items():
        assert rows[row]["result"] == shown[readout]
    assert rows["batch"]["numbers"] == f"32 × {shown['mean sequence']}"
    assert rows["left for KV"]["numbers"] == f"80 GiB × 0.90 − {shown['weights']}"
    assert rows["blocks"]["numbers"] == f"{chosen.cache_bytes:,} / (16 × {chosen.token_bytes:,})"
    blocks, filled = (float(part.replace(",", "")) for part in rows["paged"]["numbers"].split(" / "))
    assert f"{int(blocks / filled):,}" == rows["paged"]["result"]  # worked out from the digits shown


@pytest.mark.parametrize(
    ("model", "weights", "words"),
    [
        ("llama-3.1-8b", "bfloat16", "parameters × bits / 8"),
        ("llama-3.1-8b", "int4", "(table and head × 16 + other parameters × bits) / 8"),
        ("llama-3.2-1b", "int8", "(table × 16 + other parameters × bits) / 8"),
    ],
)
def test_the_formula_of_the_weights_comes_to_their_bytes(model: str, weights: str, words: str) -> None:
    chosen = MemoryInputs(weights=weights).deployment(known_models()[model])
    row = next(row for row in formula(chosen, 32) if row["name"] == "weights")
    assert row["words"] == words
    assert eval(row["numbers"].replace("×", "*").replace(",", "")) == chosen.weight_bytes


def test_every_input_has_an_effect() -> None:
    """Changing any input changes the sheet."""
    others = {"model": "gpt-2", "weights": "int8", "kv_dtype": "int4", "gpu": "l4", "set_aside": 20, "mean": 400}
    others |= {"longest": 5000, "batch": 3, "block_size": 32}
    for name, value in others.items():
        assert answer(**{name: value}) != answer(), name
    exempt = answer(kv_dtype="int4", kv_cache_dtype_skip_layers="0 31")
    assert exempt != answer(kv_dtype="int4")
    row = next(row for row in exempt["formula"] if row["name"] == "token")
    numbers, token = row["numbers"].replace("×", "*"), row["result"].partition(" ")[0]
    assert eval(numbers) == int(token.replace(",", "")) == 16 * (30 * 72 + 2 * 256)
    assert answer(kv_cache_dtype_skip_layers="0 99") == answer()  # hidden, as nothing is quantised
    assert answer(gpu=OTHER, memory=50) != answer(gpu=OTHER, memory=40)


def test_weights_that_do_not_fit_are_reported_and_drawn_past_the_end_of_the_device() -> None:
    large = known_models()["llama-3.1-70b"]
    nothing = MemoryInputs().deployment(large)
    why = "The weights do not fit: they take 131 GiB, and 72 GiB are not reserved."
    [said] = deployment_notices(large, nothing, size)
    assert said.startswith(why)
    whole = sheet(large, nothing, 32)
    assert whole["charts"]["fit"]["columns"][0]["x"] == [0] * len(KV_DTYPES)
    left = {row["label"]: row["value"] for row in whole["readouts"]}["left for KV"]
    assert left == {row["name"]: row["result"] for row in whole["formula"]}["left for KV"] == "-59.4 GiB"
    split = whole["charts"]["split"]
    assert split["columns"][0]["x"] == [pytest.approx(131.4, abs=0.1)] * 2
    assert split["columns"][1]["x"][0] == pytest.approx(8)
    assert split["layout"]["xaxis.range"] == [0, pytest.approx(1.25 * (131.4 + 8), abs=0.1)]
    assert split["layout"]["xaxis.tickvals"] == [80]


# -- the charts ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "inputs", [MemoryInputs(), MemoryInputs(mean=1, longest=1, block_size=1), MemoryInputs(gpu="t4")]
)
def test_axes_hold_what_is_drawn(inputs: MemoryInputs) -> None:
    """Also of a model that does not fit."""
    for name, chart in sheet(LLAMA, inputs.deployment(LLAMA), 32)["charts"].items():
        for axis in {"length": "xy", "fit": "x", "split": "x"}[name]:
            low, high = chart["layout"][f"{axis}axis.range"]
            traces = [trace[axis] for trace in chart["columns"]]
            most = max(map(sum, zip(*traces, strict=True))) if name == "split" else max(map(max, traces))
            assert (low, most) == (0, pytest.approx(min(most, high))), (name, axis)
            assert high >= 4 if most == 0 else high < 2.5 * most, (name, axis)


def test_the_lines_are_bytes_by_length_and_the_bars_sequences_that_fit() -> None:
    chosen = MemoryInputs(kv_dtype="int8", longest=8192, mean=1000).deployment(LLAMA)
    others = in_every_format(chosen)
    (line, native, int8, int4, *_, marks), layout = memory.length_columns(chosen, others)
    assert layout["yaxis.ticksuffix"] == " GiB"
    assert (native["x"][-1], native["y"][-1]) == (8192, 1.0)  # 8192 x 128 KiB
    assert line["y"] == int8["y"]
    assert native["y"][-1] > int8["y"][-1] > int4["y"][-1] > 0
    scaled, _ = memory.length_columns(replace(chosen, kv_dtype="fp8_per_token_head"), others)
    names = [one["text"][-1].strip() for one in scaled[1:-1]]
    assert names == ["Auto", "", "INT4", "", "FP8 scaled", "", "TurboQuant"], "no name on another"
    assert marks == {"x": [1000, 8192], "y": [1000 / 8192 * int8["y"][-1], int8["y"][-1]], "text": ["mean", ""]}
    columns, _ = memory.fit_columns(chosen, others)
    for policy, column in zip(POLICIES, columns, strict=True):
        assert column["x"] == [other.sequences(policy) for other in others.values()]
        assert column["text"] == [f"{count:,}" for count in column["x"]]
    assert columns[0]["y"][:3] == ["Auto", "<b>INT8</b>", "INT4"]


def test_the_parts_of_a_device_add_up_to_it() -> None:
    chosen = MemoryInputs(weights="int8").deployment(LLAMA)
    columns, layout = memory.split_columns(chosen)
    assert layout["xaxis.range"] == [0, 80]
    for row in (0, 1):
        assert sum(column["x"][row] for column in columns) == pytest.approx(80)
    assert columns[0]["y"] == ["paged", "contiguous"]  # the first is drawn lowest
    paged, contiguous = columns[list(memory.PARTS).index("vain")]["x"]
    assert contiguous > 10 * paged
