"""``traffic``: requests that arrive at random, as users do, and what each of them waits for."""

from __future__ import annotations

import itertools
import random
import statistics
import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field

from lab.config import EngineConfig, SamplingParams
from lab.engine.engine import Engine
from lab.measure.measuring import shuffled
from lab.measure.throughput import arrivals
from lab.measure.workload import PlannedRequest, user_requests, write
from lab.trace.events import Committed, RunStarted
from lab.trace.recorder import BatchStep
from lessons.experiments.base import MOST_REPEATS, Experiment, Load, Measured, Name, Part, Watch, Work, spoken

OF_TRAFFIC = {
    "requests_per_second": "that were answered",
    "goodput": "of these, those that kept to both limits",
    "good_share": "the same as a share",
    "ttft_p50_ms": "time to first token, waiting included, of the median request; the long one left out",
    "gap_p50_ms": "time between two tokens of a request, median over all; the long one left out",
    "worst_gap_ms": "the longest of these",
    "long_ttft_ms": "time to first token of the long prompt; 0 without one",
}
ALONE = {"ttft_ms": "time to first token of one request alone", "itl_ms": "its median time between two tokens"}
CAPACITY = {"requests_per_second": "answered if all requests wait at once: what the machine can do"}
CONFIG = EngineConfig(paged=True)
PLACES = 8
"""Most requests in a step."""


class Way(Part):
    """``load``: how many requests arrive, as a share of what the machine can do. ``long_prompt``: tokens of one more
    request's prompt, which arrives after a third of the others. ``step_tokens``: the most in a step."""

    load: float = Field(gt=0, le=4)
    long_prompt: int = Field(default=0, ge=0, le=900)
    step_tokens: int = Field(default=1024, ge=33, le=1024)


class Traffic(Experiment):
    """``requests`` that arrive as a Poisson process and get ``output_tokens`` each.

    A request is good if its TTFT is at most ``ttft_limit`` times, and its mean time per further token at most
    ``tpot_limit`` times, what a request alone takes.
    """

    repeated = timed = True

    settings: dict[Name, Way] = Field(min_length=1, max_length=6)
    requests: int = Field(default=16, ge=4, le=48)
    output_tokens: int = Field(default=24, ge=4, le=200)
    ttft_limit: float = Field(default=10.0, gt=1)
    tpot_limit: float = Field(default=4.0, gt=1)
    repeats: int = Field(default=3, ge=1, le=MOST_REPEATS)

    def names(self) -> Mapping[str, Any]:
        return {"alone": ALONE, "capacity": CAPACITY, **dict.fromkeys(self.settings, OF_TRAFFIC)}

    def work(self, load: Load, cancelled: threading.Event, watch: Watch) -> Work:
        engine = load("matched")
        watch("writing the long prompt", 0.0)
        longest = max(way.long_prompt for way in self.settings.values())
        text = write(engine, [longest])[0] if longest else ""
        users = user_requests(self.requests, "equal", self.output_tokens, temperature=0.8, seed=1)
        found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        orders = [[*self.settings], *shuffled(self.settings, self.repeats)]  # the first to warm up
        for repeat, order in enumerate(orders):
            doing = f"repeat {repeat} of {self.repeats}" if repeat else "warming up"
            watch(f"the machine's limits, {doing}", repeat / len(orders))
            limits = self._limits(engine, users, cancelled)
            yield
            for place, name in enumerate(order, 1):
                if cancelled.is_set():
                    return Measured({})
                watch(f"{spoken(name)}, {doing}", (repeat + place / (1 + len(order))) / len(orders))
                served = self._served(engine, users, text, self.settings[name], limits, cancelled)
                if repeat:
                    _add(found[name], served)
                yield
            if repeat:
                _add(found["alone"], {of: limits[of] for of in ALONE})
                _add(found["capacity"], {"requests_per_second": limits["requests_per_second"]})
        return Measured({} if cancelled.is_set() else {name: dict(one) for name, one in found.items()})

    def _limits(self, engine: Engine, users: Sequence[PlannedRequest], cancelled: threading.Event) -> dict[str, float]:
        after = 2 * self.output_tokens  # steps: the first request of a fresh engine is slower, and has ended by then
        alone = Waits([*arrivals(engine, users[:2], CONFIG, every=after, cancelled=cancelled)])
        all_at_once = Waits([*arrivals(engine, users, CONFIG, max_num_seqs=PLACES, cancelled=cancelled)])
        if cancelled.is_set():
            return {}
        *_, ttft = alone.ttft.values()
        *_, gaps = alone.gaps.values()
        itl = statistics.median(gaps or [ttft])
        return {"ttft_ms": ttft, "itl_ms": itl, "requests_per_second": len(users) / all_at_once.seconds}

    def _served(
        self,
        engine: Engine,
        users: Sequence[PlannedRequest],
        text: str,
        way: Way,
        limits: Mapping[str, float],
        cancelled: threading.Event,
    ) -> dict[str, float]:
        requests, long = [*users], None
        if way.long_prompt:
            long = len(requests) // 3
            how = SamplingParams(max_tokens=self.output_tokens, temperature=0.8, seed=0, ignore_eos=True)
            requests.insert(long, PlannedRequest(text, how))
        rate, draw, at = way.load * limits["requests_per_second"], random.Random(1), [0.0]
        while len(at) < len(requests):
            at.append(at[-1] + (0.0 if len(at) == long else draw.expovariate(rate)))
        own = engine.clone(max_num_batched_tokens=way.step_tokens)
        steps = arrivals(own, requests, CONFIG, at=at, max_num_seqs=PLACES, cancelled=cancelled)
        waits = Waits([*steps])
        ttft = {owner: ms for owner, ms in waits.ttft.items() if owner != long}
        gaps = {owner: some for owner, some in waits.gaps.items() if owner != long and some}
        if not gaps:  # cancelled
            return dict.fromkeys(OF_TRAFFIC, 0.0)
        good = sum(
            ttft[owner] <= self.ttft_limit * limits["ttft_ms"]
            and statistics.fmean(some) <= self.tpot_limit * limits["itl_ms"]
            for owner, some in gaps.items()
        )
        every = [gap for some in gaps.values() for gap in some]
        return {
            "requests_per_second": len(ttft) / waits.seconds,
            "goodput": good / waits.seconds,
            "good_share": good / len(ttft),
            "ttft_p50_ms": statistics.median(ttft.values()),
            "gap_p50_ms": statistics.median(every),
            "worst_gap_ms": max(every),
            "long_ttft_ms": 0.0 if long is None else waits.ttft[long],
        }


def _add(to: dict[str, list[float]], more: Mapping[str, float]) -> None:
    for name, value in more.items():
        to[name].append(value)


class Waits:
    """Milliseconds that each request waited for its first token, and between its tokens; ``seconds`` of all."""

    def __init__(self, steps: Sequence[BatchStep]) -> None:
        began: dict[int, float] = {}
        came: dict[int, list[float]] = defaultdict(list)
        for t_ms, owner, event in (entry for step in steps for entry in step.entries):
            if isinstance(event, RunStarted):
                began[owner] = t_ms
            elif isinstance(event, Committed):
                came[owner].append(t_ms)
        self.ttft = {owner: times[0] - began[owner] for owner, times in came.items()}
        self.gaps = {owner: [b - a for a, b in itertools.pairwise(times)] for owner, times in came.items()}
        ends = [times[-1] for times in came.values()]
        self.seconds = (max(ends) - min(began.values())) / 1000 if ends else 0.0
