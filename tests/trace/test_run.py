"""A saved run is the same when it is loaded; a bad file is refused."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from lab import EngineConfig, Run, RunFileError, SamplingParams
from lab.trace.events import EVENT_TYPES, Distributions, Finished
from lab.trace.json_codec import from_dict, to_dict
from lab.trace.run import VERSION, parse_json
from lab.util.machine_info import hardware
from tests import tiny_models


@pytest.fixture(scope="module")
def run():
    lab = tiny_models.engine("llama", "good")
    config = EngineConfig(paged=True, speculative="draft")
    sampling = SamplingParams(max_tokens=30, temperature=1.0, stop="zz", ignore_eos=True)
    return lab.generate("Es war einmal ☃", config, sampling)


def test_a_saved_run_loads_as_it_was(run, tmp_path):
    run.save(tmp_path / "run.json")
    loaded = Run.load(tmp_path / "run.json")
    assert loaded.events == run.events
    assert (loaded.text, loaded.token_ids, loaded.prompt_token_ids) == (run.text, run.token_ids, run.prompt_token_ids)
    assert loaded.metrics == run.metrics
    assert (loaded.config, loaded.sampling, loaded.reason) == (run.config, run.sampling, run.reason)


def test_every_kind_of_event_is_registered_by_its_own_name(run):
    assert len(EVENT_TYPES) == 21
    assert {event.kind for event in run.events} <= EVENT_TYPES.keys()


def test_events_survive_json(run):
    for event in run.events:
        assert from_dict(json.loads(json.dumps(to_dict(event)))) == event


def test_an_event_from_before_a_field_existed_is_read():
    around = Distributions(t_ms=0, step=1, position=0, token_ids=(1,), texts=("a",), p=(0.5,), q=(0.5,), residual=None)
    record = to_dict(around)
    del record["overlap"]
    assert from_dict(record) == around
    del record["residual"]
    with pytest.raises(ValueError, match="missing or unknown fields: residual"):
        from_dict(record)


def test_a_run_says_what_hardware_it_was_made_on(run):
    assert run.started.hardware == hardware("cpu")
    assert run.started.accelerator == "cpu"
    there = replace(run.started, device="cuda:0", hardware="NVIDIA H200")
    assert there.accelerator == "NVIDIA H200"
    assert replace(there, hardware="").accelerator == "cuda:0"


def damaged(run, change) -> str:
    document = {"format": "decode-lab-run", "version": VERSION, "events": [to_dict(event) for event in run.events]}
    document = json.loads(json.dumps(document))
    change(document)
    return json.dumps(document)


def first(document, kind):
    return next(record for record in document["events"] if record["kind"] == kind)


def last(document, kind):
    return next(record for record in reversed(document["events"]) if record["kind"] == kind)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(format="other"), "its format is not"),
        (lambda d: d.update(version=99), "version 99"),
        (lambda d: d.update(version=VERSION - 1), f"version {VERSION - 1}; this lab reads {VERSION}"),
        (lambda d: d.pop("version"), "version None"),
        (lambda d: d.update(events=[]), "begins with a run_started"),
        (lambda d: d.update(events=None), "damaged"),
        (lambda d: d.pop("events"), "damaged: it has no list of events"),
        (lambda d: d["events"].pop(0), "begins with a run_started"),
        (lambda d: d["events"].append({"kind": "launch"}), "not an event"),
        (lambda d: d["events"].append(["finished"]), "not an event"),
        (lambda d: d["events"].append({"kind": ["finished"]}), "not an event"),
        (lambda d: d["events"][-1].update(reason="tired"), "reason of a finished event is wrong"),
        (lambda d: d["events"][-1].update(t_ms="soon"), "t_ms of a finished event is wrong"),
        (lambda d: d["events"][-1].update(t_ms=True), "t_ms of a finished event is wrong"),
        (lambda d: last(d, "step_timed").update(step=True), "step of a step_timed event is wrong"),
        (lambda d: d["events"][-1].update(t_ms=float("nan")), "t_ms of a finished event is wrong"),
        (lambda d: d["events"][-1].update(t_ms=10**400), "t_ms of a finished event is wrong"),
        (lambda d: d["events"][-1].update(extra=1), "extra"),
        (lambda d: first(d, "proposed").update(position=10**9), "position of a proposed event must be from 0 to 31"),
        (lambda d: first(d, "proposed").update(position=-1), "position of a proposed event must be from 0 to 31"),
        (lambda d: first(d, "committed").update(token_ids=[]), "a committed event has at least one token"),
        (lambda d: d["events"][0].update(prompt_token_ids=["x"]), "prompt_token_ids"),
        (lambda d: d["events"][0]["config"].update(block_size=-3), "block_size"),
        (lambda d: d["events"][0]["config"].update(surprise=1), "surprise"),
        (lambda d: d["events"][0]["sampling"].update(temperature=-1), "damaged: temperature"),
        (lambda d: d["events"][0].update(copy_bytes_per_second=0.0), "no run has such numbers"),
        (lambda d: d["events"][0].update(matmul_flops_per_second=-1.0), "no run has such numbers"),
        (lambda d: last(d, "step_timed").update(verify_bytes=10**400), "no run has such numbers"),
        (lambda d: d.update(events=[e for e in d["events"] if e["kind"] != "proposed"]), "do not go together"),
    ],
)
def test_damaged_files_are_refused(run, tmp_path, change, message):
    path = tmp_path / "run.json"
    path.write_text(damaged(run, change), "utf-8")
    with pytest.raises(RunFileError, match=message):
        Run.load(path)


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"[" * 200_000, b"{}", b"[]", b"null", b"NaN"])
def test_files_that_are_no_runs_are_refused(tmp_path, content):
    path = tmp_path / "run.json"
    path.write_bytes(content)
    with pytest.raises(RunFileError, match=r"^run\.json"):  # it does not say where the file is
        Run.load(path)


def test_missing_and_huge_files_are_refused(tmp_path, monkeypatch):
    for name in ("none.json", "a\0b"):
        with pytest.raises(RunFileError, match="cannot be read"):
            Run.load(tmp_path / name)
    big = tmp_path / "big.json"
    big.write_text("[1,2]")
    for most, message in ((1, "has 5 bytes; a run's file has at most 1"), (5, "its format is not")):
        monkeypatch.setattr("lab.trace.run.MAX_FILE_BYTES", most)
        with pytest.raises(RunFileError, match=message):
            Run.load(big)


@pytest.mark.parametrize(("data", "values"), [(b"[1,2,3,4,5]", 5), (b"[[],{}]", 4 * 3)])
def test_values_and_lists_are_counted_before_they_are_read(data, values):
    assert parse_json(data, "run.json", values) == json.loads(data)
    with pytest.raises(RunFileError, match=f"holds more than {values - 1} values"):
        parse_json(data, "run.json", values - 1)


def test_an_unfinished_run_can_be_read(run):
    part = Run(run.events[:-1])
    assert part.finished is None
    assert part.reason is None
    assert not isinstance(part.events[-1], Finished)
    whole = Run((*part.events, replace(run.finished, text="half")))  # held back until the end
    assert whole.text == part.text + "half"


def test_a_lone_surrogate_in_a_prompt_is_saved_and_loaded(run, tmp_path):
    begun = replace(run.started, prompt="\ud800 <b>")
    Run((begun, *run.events[1:])).save(tmp_path / "run.json")
    assert Run.load(tmp_path / "run.json").prompt == "\ud800 <b>"


def test_an_endless_file_is_refused():
    with pytest.raises(RunFileError, match="at most"):
        Run.load("/dev/zero")
