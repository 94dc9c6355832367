"""A saved run is the same when it is loaded; a bad file is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from lab import EngineConfig, Run, RunFileError, SamplingParams
from lab.trace.events import EVENT_TYPES, Distributions, Finished
from lab.trace.json_codec import from_dict, to_dict
from lab.trace.run import VERSION, parse_json
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
    assert len(EVENT_TYPES) == 22
    assert {event.kind for event in run.events} <= EVENT_TYPES.keys()
    Run((replace(run.started, prompt="\ud800 <b>"), *run.events[1:])).save(tmp_path / "run.json")
    assert Run.load(tmp_path / "run.json").prompt == "\ud800 <b>"  # half a character


def test_a_file_with_former_names_is_read(run):
    record = to_dict(run.started)
    record["copy_bytes_per_second"] = record.pop("read_bytes_per_second")
    assert from_dict(record) == run.started
    event = next(event for event in run.events if event.kind == "verified")
    assert from_dict(to_dict(event) | {"kind": "judged"}) == event


def test_an_event_from_before_a_field_existed_is_read():
    around = Distributions(t_ms=0, step=1, position=0, token_ids=(1,), texts=("a",), p=(0.5,), q=(0.5,), residual=None)
    record = to_dict(around)
    del record["overlap"]
    assert from_dict(record) == around
    del record["residual"]
    with pytest.raises(ValueError, match="missing or unknown fields: residual"):
        from_dict(record)


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


def changed(field: str, value: object, kind: str = "finished") -> Callable[[dict], None]:
    """Sets a field of the last event of a kind."""
    return lambda d: next(it for it in reversed(d["events"]) if it["kind"] == kind).update({field: value})


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda d: d.update(format="other"), "format"),
        *((lambda d, it=it: d.update(version=it), f"version {it}") for it in (99, VERSION - 1, None)),
        *((lambda d, it=it: d.update(events=it), "run_started|no list of events") for it in ([], None)),
        (lambda d: d.pop("events"), "no list of events"),
        (lambda d: d["events"].pop(0), "run_started"),
        *((lambda d, it=it: d["events"].append(it), "not an event") for it in ({"kind": "launch"}, ["finished"])),
        (lambda d: d["events"].append({"kind": ["finished"]}), "not an event"),
        (changed("reason", "tired"), "reason of a finished event"),
        *((changed("t_ms", it), "t_ms of a finished event") for it in ("soon", True, float("nan"), 10**400)),
        (changed("extra", 1), "extra"),
        (changed("step", True, "step_timed"), "step of a step_timed event"),
        *((changed("position", it, "proposed"), "position of a proposed event") for it in (10**9, -1)),
        (changed("token_ids", [], "committed"), "at least one token"),
        (changed("prompt_token_ids", ["x"], "run_started"), "prompt_token_ids"),
        (lambda d: d["events"][0]["config"].update(block_size=-3), "block_size"),
        (lambda d: d["events"][0]["config"].update(surprise=1), "surprise"),
        (lambda d: d["events"][0]["sampling"].update(temperature=-1), "temperature"),
        (changed("read_bytes_per_second", 0.0, "run_started"), "no run has such numbers"),
        (changed("flops_per_second", -1.0, "run_started"), "no run has such numbers"),
        (changed("verify_bytes", 10**400, "step_timed"), "no run has such numbers"),
        (lambda d: d.update(events=[e for e in d["events"] if e["kind"] != "proposed"]), "do not go together"),
    ],
)
def test_damaged_files_are_refused(run, tmp_path, change, word):
    document = json.loads(run.to_json())
    change(document)
    (tmp_path / "run.json").write_text(json.dumps(document), "utf-8")
    with pytest.raises(RunFileError, match=word):
        Run.load(tmp_path / "run.json")


def test_files_that_are_no_runs_are_refused(tmp_path, monkeypatch):
    path = tmp_path / "run.json"
    for content in (b"", b"\xff\xfe", b"[" * 200_000, b"{}", b"[]", b"null", b"NaN"):
        path.write_bytes(content)
        with pytest.raises(RunFileError, match=r"^run\.json"):  # without its path
            Run.load(path)
    for name in ("none.json", "a\0b"):
        with pytest.raises(RunFileError, match="cannot be read"):
            Run.load(tmp_path / name)
    path.write_text("[1,2]")
    for most, word in ((1, "at most 1"), (5, "format")):
        monkeypatch.setattr("lab.trace.run.MAX_FILE_BYTES", most)
        with pytest.raises(RunFileError, match=word):
            Run.load(path)
    with pytest.raises(RunFileError, match="at most"):
        Run.load("/dev/zero")  # it has no end
