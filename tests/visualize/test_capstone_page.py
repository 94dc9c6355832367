"""The capstone page: every case is set and graded, and what cannot be simulated is said in sentences."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from lab.errors import ConfigError
from lessons.capstone.cases import CASES
from visualize.jobs.job_queue import JobQueue
from visualize.pages.capstone import grading
from visualize.pages.capstone.grading import FORM, CapstoneAttempt, CapstoneInputs, brief, from_link


def no_engine(pair: str) -> Any:
    raise AssertionError("no model takes part")


def attempted(**chosen: Any) -> dict[str, Any]:
    inputs = CapstoneInputs(**chosen)
    job = CapstoneAttempt(JobQueue(), no_engine, inputs.case, inputs.choices())
    assert job.done.wait(60)
    json.dumps(record := job.record(), allow_nan=False)
    return record


def test_every_case_is_set_with_its_targets() -> None:
    assert {*FORM["task"].options} == {*CASES}
    for case in CASES.values():
        record = brief(case)
        assert [name for name, _ in record["targets"]] == ["TTFT p95", "TPOT p95", "Goodput"]


def test_settings_that_do_not_fit_are_graded_with_a_reason() -> None:
    graded = attempted(task="chat")["graded"]
    assert not graded["passed"]
    [memory] = graded["marks"]
    assert "The weights take" in memory["limited"]
    assert "--max-num-seqs 16" in graded["command"]


@pytest.mark.slow
def test_settings_that_meet_all_targets_pass() -> None:
    graded = attempted(
        task="agents",
        enable_prefix_caching=True,
        max_num_seqs=32,
        max_num_batched_tokens=1024,
        num_speculative_tokens=4,
    )["graded"]
    assert graded["passed"]
    assert all(mark["passed"] for mark in graded["marks"])
    assert "requests" in graded["figures"]


@pytest.mark.parametrize(
    ("name", "value"), [("max_num_seqs", 0), ("max_num_batched_tokens", 1e9), ("gpu_memory_utilization", float("nan"))]
)
def test_numbers_out_of_range_are_refused_by_their_labels(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=FORM[name].label):
        CapstoneInputs(**{name: value}).choices()


def test_what_vllm_refuses_is_said_and_nothing_simulated() -> None:
    record = attempted(task="batch", max_num_seqs=512, max_num_batched_tokens=64)
    assert record["problem"].endswith("Nothing was simulated.")
    assert "has no room" in record["problem"]


def test_an_attempt_can_be_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = threading.Event()

    def endless(case: Any, chosen: Any, *, watch: Any) -> Any:
        while True:
            watch(0.0)
            begun.set()

    monkeypatch.setattr(grading, "attempt", endless)
    inputs = CapstoneInputs(task="batch")
    job = CapstoneAttempt(JobQueue(), no_engine, inputs.case, inputs.choices())
    assert begun.wait(10)
    job.cancelled.set()
    assert job.done.wait(10)
    assert job.record() == {"running": False, "progress": "Stopped."}


def test_a_links_settings_are_taken_or_named() -> None:
    inputs, notices = from_link({"task": "batch", "max_num_seqs": "64", "kv_dtype": "banana"})
    assert (inputs.task, inputs.max_num_seqs, inputs.kv_dtype) == ("batch", 64, "auto")
    assert len(notices) == 1
    assert "kv_dtype" in notices[0]
