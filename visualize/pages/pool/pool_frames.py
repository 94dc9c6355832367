"""Steps of many sequences reduced to frames, as ``visualize.reduce.frames`` does with the events of one run.

There is one frame per engine step and one for the end, in order, numbered by ``seq``; a frame says only what changed.
The page's script (``static/stage.js``) applies both kinds alike. These fields of a frame have a meaning of their
own here:

    head       first frame only: models and configuration, sequences ``expected``, slots per block
    tokens     [{owner, text}], what the step committed
    charts     patches of the tables ``pool`` (one row per block: ``batch.blocks``) and ``sequences`` (one row per
               sequence: ``batch.sequences``), and of the charts against time (``figures.batch``)
    compared   first frame only: which settings changed since the previous run, or that other sequences came
    captions   of the pool, and of the waiting, running and finished sequences
"""

from collections import Counter, deque
from collections.abc import Iterable
from typing import Any, NamedTuple

from lab.kv_cache.block_pool import Occupancy
from lab.trace.events import Committed, Proposed, RunStarted, StepTimed
from lab.trace.recorder import BatchStep
from visualize.charts import pool_charts as figures
from visualize.pages.pool import pool_narration as narrate
from visualize.pages.pool.pool_metrics import READOUTS, PoolWorkload, Tally
from visualize.reduce.block_map import BlockMap
from visualize.reduce.frames import Fold, Frame, about
from visualize.reduce.metric_cards import cards
from visualize.reduce.sequence_table import Sequences
from visualize.reduce.settings_text import since
from visualize.text import visible

States = tuple[Occupancy, int, int, int | None]
"""The pool's blocks by state; running and waiting sequences; the most tokens drafted for one in the step."""
SMOOTH = 8
"""Steps over which tokens per second are averaged."""


class PreviousPoolRun(NamedTuple):
    """The run that the current one is compared with: its inputs and its counts."""

    asked: PoolWorkload
    tally: Tally


class BatchReducer(Fold):
    """Turns the steps of one run into frames.

    Args:
        expected: number of sequences that will arrive.
        asked: the run's inputs; None if unknown, as for a run from a file.
        before: the run to compare with, if it had the same sequences.
        recorded: whether the run comes from a file.
    """

    def __init__(
        self,
        expected: int,
        asked: PoolWorkload | None = None,
        before: PreviousPoolRun | None = None,
        *,
        recorded: bool = False,
    ) -> None:
        super().__init__()
        self._asked, self._before, self._recorded = asked, before, recorded
        self._alike = bool(asked and before) and asked.coming == before.asked.coming
        self._expected = expected
        self._tally = Tally(expected)
        self._sequences = Sequences()
        self._blocks: BlockMap | None = None
        self._gamma = self._drafted = 0
        # Tokens, and the ms at which they were committed. Of the first only the time counts: it starts the interval.
        self._pace: deque[tuple[int, float]] = deque(maxlen=SMOOTH + 1)
        self._top_speed = 0.0

    def feed(self, steps: Iterable[BatchStep]) -> list[Frame]:
        frames = []
        for step in steps:
            if step.entries:
                frames.append(self._step(step))
            if step.last and self._blocks:
                frames.append(self._end())
        return frames

    def after(self) -> PreviousPoolRun | None:
        return PreviousPoolRun(self._asked, self._tally) if self._seq and self._asked else self._before

    def _step(self, step: BatchStep) -> Frame:
        head = {} if self._blocks else self._head(step)
        drafted = Counter(entry.owner for entry in step.entries if isinstance(entry.event, Proposed))
        self._drafted = max(drafted.values(), default=0)
        tokens = []
        computed = None
        for entry in step.entries:
            owner, event = entry.owner, entry.event
            if not computed and isinstance(event, Committed | StepTimed):
                computed = self._states()  # all have joined, and those that end with this step have not left
            self._tally.take(entry)
            self._blocks.take(owner, event)
            self._sequences.take(owner, event)
            if isinstance(event, Committed):
                tokens += [{"owner": owner, "text": visible(event.text)}] if event.text else []
        for owner in self._sequences.changed():
            self._sequences.seen[owner].blocks = self._blocks.held(owner)
        computed = computed or self._states()
        self._tally.step(self._blocks.used(), computed[1])
        made = sum(len(entry.event.token_ids) for entry in step.entries if isinstance(entry.event, Committed))
        sentence, rare = narrate.narrated(step.entries, self._tally.tokens)
        charts, layout = self._drawn(made, computed)
        changes = {"tokens": tokens, "charts": charts, "layout": layout, "say": sentence, "linger": rare}
        return self._shown(self._seq, head | changes)

    def _end(self) -> Frame:
        tally, self._drafted = self._tally, 0
        sentence = narrate.over(tally)
        charts = {"pool": self._blocks.patches()}  # clears the marks
        charts |= figures.states(tally.ms / 1000, *self._states())
        return self._shown(-1, {"charts": charts, "say": sentence, "finished": {"reason": "over", "message": ""}})

    def _shown(self, step: int, changes: dict[str, Any]) -> Frame:
        before = self._before.tally if self._alike else None
        changes["readouts"] = cards(READOUTS, self._tally, before, over="finished" in changes)
        changes["captions"] = self._captions()
        return self._frame(self._tally.now_ms, step, changes)

    def _head(self, step: BatchStep) -> dict[str, Any]:
        run = next(entry.event for entry in step.entries if isinstance(entry.event, RunStarted))
        self._gamma = run.config["num_speculative_tokens"] if run.config["speculative"] != "off" else 0
        self._blocks = BlockMap(run.num_blocks, run.config["block_size"], windows=run.group_windows)
        head = {
            **about(run),
            "expected": self._expected,
            "block_size": run.config["block_size"],
            "recorded": self._recorded,
        }
        return {
            "head": head,
            "compared": self._compared(),
            "columns": {"pool": self._blocks.columns(), "sequences": self._sequences.columns()},
        }

    def _compared(self) -> str:
        if not (self._asked and self._before and self._alike):
            return ""
        was = self._before.asked.settings
        return since(
            [f"{name} {was[name]} → {word}" for name, word in self._asked.settings.items() if was[name] != word]
        )

    def _states(self) -> States:
        counts = self._sequences.counts()
        drafted = self._drafted if self._gamma else None
        return self._blocks.occupancy(), counts["running"], counts["waiting"], drafted

    def _drawn(self, made: int, computed: States) -> tuple[dict[str, Any], dict[str, Any]]:
        """The charts' patches and axes after a step that ``made`` tokens, of what was ``computed`` in it."""
        charts = {"pool": self._blocks.patches(), "sequences": self._sequences.patches()}
        begins = figures.states(0, *computed) if not self._pace else {}
        if not self._pace:
            self._pace.append((0, self._tally.began_ms))
        self._pace.append((made, self._tally.now_ms))
        passed = self._tally.now_ms - self._pace[0][1]
        speed = 1000 * sum(tokens for tokens, _ in list(self._pace)[1:]) / passed if passed > 0 else 0.0
        self._top_speed = max(self._top_speed, speed)
        seconds = self._tally.ms / 1000
        points = figures.states(seconds, *computed) | figures.pace(seconds, speed)
        charts |= {name: begins.get(name, []) + patches for name, patches in points.items()}
        most = max(self._expected, self._gamma)
        return charts, figures.layout(seconds, self._blocks.num_blocks, most, self._top_speed)

    def _captions(self) -> dict[str, str]:
        counts = self._sequences.counts()
        done = sum(counts[state] for state in ("finished", "cancelled", "failed"))
        return {
            "pool": self._blocks.caption(),
            "waiting": f"{counts['waiting']}",
            "running": f"{counts['running']}",
            "done": f"{done} of {self._expected}",
        }
