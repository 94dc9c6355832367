"""What Lab, Pool and Compare open with: ``python -m docs.record_opening``. On a quiet machine: times are shown."""

from __future__ import annotations

import gzip
from dataclasses import replace

from lab import load_engine
from lab.registry import Engines
from lab.util.machine_info import describe_machine
from visualize.jobs.job_queue import JobQueue
from visualize.pages.compare.compare_job import Comparison
from visualize.pages.compare.configurations import CompareInputs
from visualize.pages.pool.page import POOL, BatchRun
from visualize.pool_inputs import PRESETS
from visualize.recorded_results import OPENING, OPENING_COMPARISON, OPENING_POOL
from visualize.run_settings import Settings
from visualize.text import as_line

SEED = 3
"""A run with every kind of verdict in its first rounds."""
TOKENS = 40


def main() -> None:
    settings = Settings()
    sampling = replace(settings.sampling(), max_tokens=TOKENS, seed=SEED, logprobs=5)
    engine, config = load_engine(), settings.engine_config(settings.blocks)
    engine.generate(settings.prompt, config, sampling)  # the first run of a process is slower
    engine.generate(settings.prompt, config, sampling).save(OPENING)

    pool = BatchRun(JobQueue(), Engines(), PRESETS["users"].inputs)
    pool.done.wait()
    OPENING_POOL.write_bytes(gzip.compress(POOL.formats["json"][1](pool.events).encode(), mtime=0))

    comparison = Comparison(JobQueue(), Engines(), CompareInputs())
    comparison.done.wait()
    record = comparison.record() | {"opening": describe_machine("cpu")["processor"]}
    record.pop("gate", None)  # whoever sees the recording sits at another machine
    OPENING_COMPARISON.write_text(as_line(record), "utf-8")


if __name__ == "__main__":
    main()
