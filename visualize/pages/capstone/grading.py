"""The capstone's inputs, and an attempt as JSON for the page."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from lab.claims.trial import Stopped
from lab.settings import SETTINGS, Setting
from lessons.capstone.cases import ASSUMED, CASES, CapstoneCase, Graded, ServerChoices, attempt
from visualize.jobs.job_queue import JobQueue, Load
from visualize.jobs.live_run import ProgressJob, Record
from visualize.url_settings import Form

_DEFAULT = ServerChoices()


def _number(name: str, label: str, help: str, bounds: tuple[float, float], step: float | None = None) -> Setting:
    return Setting(name, label, help, default=getattr(_DEFAULT, name), bounds=bounds, step=step)


def _shared(name: str, **changes: Any) -> Setting:
    return replace(SETTINGS[name], help="", vllm="", about={}, needs=(), default=getattr(_DEFAULT, name), **changes)


FORM = Form(
    (
        Setting(
            "task", "Case", options={name: case.title for name, case in CASES.items()}, default="chat", listed=True
        ),
        _number("gpu_memory_utilization", "GPU memory to use", "Its share for weights and cache.", (0.1, 1.0), 0.01),
        _shared("kv_dtype"),
        _number("max_num_seqs", "Requests in a step", "max_num_seqs", (1, 1024)),
        _number("max_num_batched_tokens", "Tokens in a step", "max_num_batched_tokens", (64, 65536)),
        _shared("enable_prefix_caching"),
        _shared("speculative", options={"off": "Off", "draft": "Draft", "ngram": "N-gram"}),
        _shared("num_speculative_tokens"),
    )
)


class CapstoneInputs(FORM.values_class("CapstoneValues")):
    """The page's controls, with their initial values."""

    @property
    def case(self) -> CapstoneCase:
        return CASES.get(self.task) or CASES[FORM["task"].default]

    def choices(self) -> ServerChoices:
        """Raises ConfigError for a number out of range."""
        FORM.check(vars(self))
        return ServerChoices(**{name: value for name, value in vars(self).items() if name != "task"})


def from_link(query: Mapping[str, str]) -> tuple[CapstoneInputs, list[str]]:
    """The inputs a link asks for, and a sentence for each value that was left out."""
    found, notices = FORM.read(query)
    return CapstoneInputs(**found), notices


def brief(case: CapstoneCase) -> Record:
    """A case, as it is set."""
    return {"title": case.title, "about": case.about, "given": case.given, "targets": [*case.targets.words.items()]}


def setup() -> Record:
    """The start of the page's script."""
    return {"assumed": ASSUMED}


def shown(found: Graded) -> Record:
    """A graded attempt."""
    missed = sum(not mark.passed for mark in found.marks)
    said = "All targets are met."
    if not found.figures:
        said = "It does not fit, so nothing was simulated. See why, and change a setting."
    elif missed:
        said = f"{missed} of {len(found.marks)} targets missed. See why, and change a setting."
    return {
        "say": said,
        "passed": found.passed,
        "marks": [asdict(mark) for mark in found.marks],
        "figures": found.figures,
        "command": found.command,
    }


class CapstoneAttempt(ProgressJob):
    """Simulates a case with chosen settings. No engine takes part, so it waits for no turn."""

    def __init__(self, queue: JobQueue, load: Load, case: CapstoneCase, chosen: ServerChoices) -> None:
        self._case, self._chosen = case, chosen
        self._share, self._found = 0.0, None
        super().__init__(queue, load)

    def _work(self) -> None:
        try:
            self._found = shown(attempt(self._case, self._chosen, watch=self._watch))
        except Stopped:
            return

    def _watch(self, share: float) -> None:
        if self.cancelled.is_set():
            raise Stopped
        self._share = share

    def record(self) -> Record:
        over = self.done.is_set()
        if not over:
            said = f"Simulating: {self._share:.0%} of the requests are served."
            return {"running": True, "progress": said} | self.share(self._share)
        if self.problem:
            return {"running": False, "problem": f"{self.problem} Nothing was simulated."}
        return {"running": False, "graded": self._found} if self._found else {"running": False, "progress": "Stopped."}
