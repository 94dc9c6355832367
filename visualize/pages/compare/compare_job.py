"""Jobs of the Compare page: settings side by side, and how the time per token grows.

A comparison is many runs. Each waits for its own turn, so that other visitors' runs come in between, not after
all of them.
"""

from contextlib import suppress
from typing import Any

from lab.config import EngineConfig
from lab.engine.engine import Engine
from lab.errors import ConfigError
from lab.measure.comparison import WARM_UP_TOKENS, compare
from lab.measure.difference import first_differences
from lab.measure.measuring import RunTurn
from lab.measure.reference import reference
from lab.measure.scaling_fit import UNCACHED, growth_share, measure_growth
from lab.settings import KV_DTYPES
from lab.trace.events import Committed, Event
from lab.trace.run import Run
from visualize.jobs.job_queue import JobQueue, Load
from visualize.jobs.live_run import ProgressJob, Record
from visualize.pages.compare.configurations import CompareInputs
from visualize.reduce import compare_report as comparison
from visualize.reduce import theory_report as prediction
from visualize.run_settings import bounded


class Comparison(ProgressJob):
    """Settings compared on a prompt; ``count``: the finished runs, of which only what the page shows is kept."""

    def __init__(self, queue: JobQueue, load: Load, inputs: CompareInputs) -> None:
        self.inputs = inputs
        self.count = 0
        self._now: tuple[RunTurn, int] | None = None
        self._lanes: dict[str, tuple[int, list[Any]]] = {}  # each one's newest run: its number, and its tokens so far
        self._reading = False
        self._so_far: Record = {}
        self._whole: Record = {}
        super().__init__(queue, load)

    def _work(self) -> None:
        inputs = self.inputs
        configs, sampling, prompt = inputs.configs(), inputs.sampling(), bounded(inputs.prompt)
        with self.turn():
            engine = self.engine(inputs.pair)
            self.compile(engine, configs.values())
            self.look(engine)
        steps = compare(engine, prompt, configs, sampling, inputs.repeats, cancelled=self.cancelled, watch=self._watch)
        runs: dict[str, list[Run]] = {name: [] for name in configs}
        recorded = reference() if inputs.asks_the_usual else None
        while True:
            with self.turn():
                step = None if self.cancelled.is_set() else next(steps, None)
            if step is None:
                break
            turn, run = step
            if turn.repeat:
                runs[turn.name].append(run)
                self._so_far, self.count = comparison.so_far(runs, recorded), self.count + 1
        if all(runs.values()):
            partings = {}
            with self.turn():
                if not self.cancelled.is_set():
                    self._reading = True
                    partings = first_differences(engine, {name: some[0] for name, some in runs.items()})
            whole = comparison.whole(configs, runs, partings, recorded)
            self._whole = whole | {"theory": prediction.theory(configs, runs, _token_bytes(engine))}

    def _watch(self, turn: RunTurn, tokens: int, event: Event | None) -> None:
        self._now = turn, tokens
        if event is None:
            self._lanes[turn.name] = turn.number, []
        elif isinstance(event, Committed):
            self._lanes[turn.name][1].append(comparison.commit(event))

    def record(self) -> Record:
        over = self.done.is_set()
        record = self._so_far | {"running": not over} | self.gate | self._progress(over)
        if self._lanes and not over:
            lanes = {name: self._lanes.get(name, (0, [])) for name in self.inputs.configs()}
            record["live"] = comparison.live(self.inputs.prompt, lanes, self.inputs.max_tokens)
        if over and self.problem:
            return record | {"problem": self.problem}
        return record | self._whole if over else record

    def _progress(self, over: bool) -> Record:
        """Progress in words; during a run, its tokens so far come separately, because they change all the time."""
        if over or self._now is None or self._reading or self.status():
            return {"progress": self._standing(over)}
        turn, tokens = self._now
        first = len(self.inputs.configs())  # one each to warm up, which is no run of the comparison
        run = f"Run {turn.number - first} of {turn.of - first}: {turn.name}, repeat {turn.repeat}"
        warm = f"Warm-up {turn.number} of {first}: {turn.name}"
        # a warm-up is a sixth of a run of the default length, and takes about as long as that, with what it allocates
        weight = min(1.0, WARM_UP_TOKENS / self.inputs.max_tokens)
        whole = first * weight + turn.of - first
        part = tokens / self.inputs.max_tokens
        done = (turn.number - 1) * weight if not turn.repeat else first * weight + turn.number - first - 1
        return {"progress": run if turn.repeat else warm, "tokens": tokens} | self.share(
            min(1.0, (done + part) / whole)
        )

    def _standing(self, over: bool) -> str:
        if over and not self.cancelled.is_set():
            return ""
        if over:
            wanted = self.inputs.repeats * len(self.inputs.configs())
            after = f"Stopped after {self.count} of {wanted} runs." if self.count else "Stopped before a run was done."
            return " ".join([after, *self._whole.get("said", ())[:1]])  # the verdict, in whose place this is shown
        reading = "Measuring how sure each was where outputs part …" if self._reading else "Getting ready …"
        return self.status() or reading


def _token_bytes(engine: Engine) -> dict[str, int]:
    """Bytes per token in the target's cache, by format; formats that its heads do not support are left out."""
    found = {}
    for name in KV_DTYPES:
        with suppress(ConfigError):
            found[name] = engine.token_bytes(EngineConfig(kv_dtype=name))
    return found


class GrowthMeasurement(ProgressJob):
    """Milliseconds per token by length, with and without a cache."""

    def __init__(self, queue: JobQueue, load: Load, inputs: CompareInputs) -> None:
        self.inputs = inputs
        self._now, self._share = "", 0.0
        self._whole: Record = {}
        super().__init__(queue, load)

    def _work(self) -> None:
        curves, prompt = {}, bounded(self.inputs.prompt)
        with self.turn():
            if not self.cancelled.is_set():
                curves = measure_growth(
                    self.engine(self.inputs.pair),
                    prompt,
                    prediction.GROWTH_TOKENS,
                    cancelled=self.cancelled,
                    watch=self._watch,
                )
        if curves:
            self._whole = prediction.growth(curves)

    def _watch(self, name: str, tokens: int) -> None:
        done = tokens / prediction.GROWTH_TOKENS
        self._now = f"{name}{' a cache' * (name == UNCACHED)}: {tokens} of {prediction.GROWTH_TOKENS} tokens"
        self._share = growth_share(name, done)

    def record(self) -> Record:
        over = self.done.is_set()
        if over and self.problem:
            return {"growth": {"running": False, "problem": self.problem}}
        if over:
            return {"growth": {"running": False, **(self._whole or {"progress": "Stopped."})}}
        progress = self.status() or self._now or "Getting ready …"
        return {"growth": {"running": True, "progress": progress} | self.share(self._share)}
