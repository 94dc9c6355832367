"""What the Compare page measures: settings side by side, and how the time per token grows.

A comparison is many runs. Each waits for its own turn, so that other visitors' runs come in between, not after
all of them.
"""

from __future__ import annotations

from contextlib import suppress

from lab.bench.compare import Turn, compare
from lab.bench.difference import first_differences
from lab.bench.growth import UNCACHED, measure_growth
from lab.config import ConfigError, EngineConfig
from lab.decode.engine import Engine
from lab.trace.recorder import Run
from visualize.compare import comparison, prediction
from visualize.compare.lanes import Inputs
from visualize.run.settings import bounded
from visualize.server.tasks import Record, Task
from visualize.server.work import Line, Load
from visualize.vocabulary import KV_FORMATS


class Comparison(Task):
    """Settings compared on a prompt; ``runs`` are the finished ones, by setting."""

    def __init__(self, line: Line, load: Load, inputs: Inputs) -> None:
        self.inputs = inputs
        self.runs: dict[str, list[Run]] = {}
        self._now: tuple[Turn, int] | None = None
        self._reading = False
        self._counted, self._so_far = 0, {}
        self._whole: Record = {}
        super().__init__(line, load)

    def _work(self) -> None:
        inputs = self.inputs
        configs, sampling, prompt = inputs.configs(), inputs.sampling(), bounded(inputs.prompt)
        with self.turn():
            engine = self.engine(inputs.pair)
            self.compile(engine, configs.values())
        steps = compare(
            engine,
            prompt,
            configs,
            sampling,
            inputs.repeats,
            cancelled=self.cancelled,
            watch=self._watch,
        )
        self.runs = {name: [] for name in configs}
        while True:
            with self.turn():
                step = None if self.cancelled.is_set() else next(steps, None)
            if step is None:
                break
            turn, run = step
            if turn.repeat:
                self.runs[turn.name].append(run)
        if all(self.runs.values()):
            partings = {}
            with self.turn():
                if not self.cancelled.is_set():
                    self._reading = True
                    partings = first_differences(engine, {name: some[0] for name, some in self.runs.items()})
            whole = comparison.whole(configs, self.runs, partings)
            self._whole = whole | {"theory": prediction.theory(configs, self.runs, _token_bytes(engine))}

    def _watch(self, turn: Turn, tokens: int) -> None:
        self._now = turn, tokens

    def record(self) -> Record:
        over = self.done.is_set()
        count = sum(map(len, self.runs.values()))
        if count != self._counted:
            self._counted, self._so_far = count, comparison.so_far(self.runs)
        record = self._so_far | {"running": not over} | self._progress(over, count)
        if over and self.problem:
            return record | {"problem": self.problem}
        return record | self._whole if over else record

    def _progress(self, over: bool, count: int) -> Record:
        """Progress in words; during a run, its tokens so far come separately, because they change all the time."""
        if over or self._now is None or self._reading or self.status():
            return {"progress": self._standing(over, count)}
        turn, tokens = self._now
        of = f"warm-up of {turn.name}" if not turn.repeat else f"{turn.name}, repeat {turn.repeat}"
        return {"progress": f"Run {turn.number} of {turn.of}: {of}", "tokens": tokens}

    def _standing(self, over: bool, count: int) -> str:
        if over and not self.cancelled.is_set():
            return ""
        if over:
            wanted = self.inputs.repeats * len(self.runs)
            return f"Stopped after {count} of {wanted} runs." if count else "Stopped before a run was done."
        reading = "Measuring how sure each was where outputs part …" if self._reading else "Getting ready …"
        return self.status() or reading


def _token_bytes(engine: Engine) -> dict[str, int]:
    """Bytes per token in the target's cache, by format; formats that its heads do not support are left out."""
    found = {}
    for name in KV_FORMATS:
        with suppress(ConfigError):
            found[name] = engine.token_bytes(EngineConfig(kv_dtype=name))
    return found


class Growth(Task):
    """Milliseconds per token by length, with and without a cache."""

    def __init__(self, line: Line, load: Load, inputs: Inputs) -> None:
        self.inputs = inputs
        self._now = ""
        self._whole: Record = {}
        super().__init__(line, load)

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
        self._now = f"{name}{' a cache' * (name == UNCACHED)}: {tokens} of {prediction.GROWTH_TOKENS} tokens"

    def record(self) -> Record:
        over = self.done.is_set()
        if over and self.problem:
            return {"growth": {"running": False, "problem": self.problem}}
        if over:
            return {"growth": {"running": False, **(self._whole or {"progress": "Stopped."})}}
        return {"growth": {"running": True, "progress": self.status() or self._now or "Getting ready …"}}
