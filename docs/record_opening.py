"""The run with which the Lab opens: ``python -m docs.record_opening``. On a quiet machine: its times are shown."""

from __future__ import annotations

from dataclasses import replace

from lab import load_engine
from visualize.recorded_results import OPENING
from visualize.run_settings import Settings

SEED = 3
"""A run with every kind of verdict in its first rounds."""
TOKENS = 40


def main() -> None:
    settings = Settings()
    sampling = replace(settings.sampling(), max_tokens=TOKENS, seed=SEED, logprobs=5)
    engine, config = load_engine(), settings.engine_config(settings.blocks)
    engine.generate(settings.prompt, config, sampling)  # the first run of a process is slower
    engine.generate(settings.prompt, config, sampling).save(OPENING)


if __name__ == "__main__":
    main()
