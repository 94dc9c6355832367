"""Requests that arrive one after another: the events reported, on one clock, are those that each request records."""

from __future__ import annotations

import threading
from collections import defaultdict
from dataclasses import replace

from lab import EngineConfig, SamplingParams
from lab.measure.throughput import arrivals
from lab.measure.workload import PlannedRequest, user_requests
from lab.trace.events import Event, Finished, RunStarted, StepTimed
from lab.trace.recorder import BatchStep
from lab.trace.run import Run

PAGED = EngineConfig(paged=True, block_size=4)


def jobs(*tokens: int) -> list[PlannedRequest]:
    return [
        PlannedRequest(f"Number {i}", SamplingParams(max_tokens=n, seed=i, ignore_eos=True))
        for i, n in enumerate(tokens)
    ]


def by_owner(steps: list[BatchStep]) -> dict[int, list[Event]]:
    found = defaultdict(list)
    for step in steps:
        for entry in step.entries:
            found[entry.owner].append(entry.event)
    return found


def test_all_events_come_in_order_and_tokens_are_those_of_each_alone(lab):
    asked = jobs(9, 30, 4, 17)
    steps = list(arrivals(lab, asked, PAGED, every=3))
    times = [entry.t_ms for step in steps for entry in step.entries]
    assert times == sorted(times)
    assert times[0] >= 0
    runs = {owner: Run(events) for owner, events in by_owner(steps).items()}
    assert list(runs) == [0, 1, 2, 3]
    for job, run in zip(asked, runs.values(), strict=True):
        assert run.token_ids == lab.generate(job.prompt, PAGED, job.sampling).token_ids
        assert run.finished
        gaps = {
            round(entry.t_ms - entry.event.t_ms, 6) for s in steps for entry in s.entries if entry.event in run.events
        }
        assert len(gaps) == 1  # one clock, offset by the start of the run
    assert [step.last for step in steps] == [False] * (len(steps) - 1) + [True]


def test_one_request_arrives_every_so_many_steps(lab):
    steps = list(arrivals(lab, jobs(20, 20, 20), PAGED, every=5))
    came = [i for i, step in enumerate(steps) for entry in step.entries if isinstance(entry.event, RunStarted)]
    assert came == [0, 5, 10]
    for step in steps:  # a step of the pool is a step of each of its sequences
        timed = [entry.event for entry in step.entries if isinstance(entry.event, StepTimed)]
        assert len(timed) == timed[0].batch_sequences
    assert len(list(arrivals(lab, jobs(2, 2), PAGED, every=50))) == 4, "none while there are no requests"


def test_continuations_arrive_together_with_the_tokens_of_each_alone(lab):
    asked = [replace(job, continuations=3) for job in jobs(6, 8)]
    asked = [replace(job, sampling=replace(job.sampling, temperature=1.0, seed=10 * i)) for i, job in enumerate(asked)]
    steps = list(arrivals(lab, asked, PAGED, every=5))
    came = [(i, e.owner) for i, step in enumerate(steps) for e in step.entries if isinstance(e.event, RunStarted)]
    assert came == [(0, 0), (0, 1), (0, 2), (5, 3), (5, 4), (5, 5)]
    for owner, events in by_owner(steps).items():
        job, nth = asked[owner // 3], owner % 3
        sampling = replace(job.sampling, seed=job.sampling.seed + nth)
        assert Run(events).token_ids == lab.generate(job.prompt, PAGED, sampling).token_ids


def test_cancelling_ends_all_requests_and_reports_it(lab):
    cancelled, steps = threading.Event(), []
    for step in arrivals(lab, jobs(*[200] * 5), PAGED, every=4, cancelled=cancelled):
        steps.append(step)
        if len(steps) == 6:
            cancelled.set()
    assert len(steps) == 7
    assert steps[-1].last
    ends = [entry.event.reason for entry in steps[-1].entries if isinstance(entry.event, Finished)]
    assert ends == ["cancelled"] * 2  # the others had not arrived


def test_a_crowd_has_distinct_prompts_and_the_lengths_of_its_mix():
    equal = user_requests(200, "equal", 40, temperature=0.5, seed=3)
    assert len({job.prompt for job in equal}) == 200
    assert len({tuple(job.prompt.split()[:4]) for job in equal}) == 200, "some share a beginning"
    assert {job.sampling.max_tokens for job in equal} == {40}
    assert [job.sampling.seed for job in equal[:3]] == [3, 4, 5]
    tailed = [job.sampling.max_tokens for job in user_requests(60, "tailed", 40, temperature=0.5, seed=3)]
    assert len(set(tailed)) > 20
    assert max(tailed) <= 160
    paragraph = user_requests(3, "paragraph", 40, temperature=0.5, seed=3, beginning="All of them.")
    assert all(job.sampling.stop == ("\n",) and not job.sampling.ignore_eos for job in paragraph)
    assert all(job.prompt.startswith("All of them.\n") for job in paragraph)
