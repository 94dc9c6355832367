"""Draft tokens by batch size: as many as the table says, and the text of plain decoding."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from lab import EngineConfig, SamplingParams, load_engine
from lab.engine.engine import Engine
from lab.trace.events import FellBack, Proposed, StepTimed
from tests.tiny_models import of

PROMPTS = ("Once upon a time there was", "The king", "A little girl went", "There was once a fox", "In the wood")
LENGTHS = (12, 20, 28, 36, 44)
"""The batch shrinks as they end."""


@pytest.fixture(scope="module")
def lab() -> Engine:
    return load_engine(dtype="float32")


@pytest.mark.slow
@pytest.mark.parametrize("drafter", ["draft", "eagle3", "dflash", "ngram"])
@pytest.mark.parametrize("table", ["1-1:4 2-3:2 4-64:0", "1-2:0 3-64:5", "1:1"])
def test_a_round_drafts_what_the_table_says_and_the_text_stays(lab, drafter, table):
    plain = EngineConfig(paged=True)
    config = replace(plain, speculative=drafter, num_speculative_tokens_per_batch_size=table)
    requests = [
        (prompt, SamplingParams(max_tokens=most, ignore_eos=True))
        for prompt, most in zip(PROMPTS, LENGTHS, strict=True)
    ]
    expected = [lab.generate(prompt, plain, sampling).token_ids for prompt, sampling in requests]
    runs = [one.result() for one in [lab.submit(prompt, config, sampling) for prompt, sampling in requests]]
    assert [run.token_ids for run in runs] == expected
    by_batch = {"1-1:4 2-3:2 4-64:0": [4, 2, 2, 0, 0], "1-2:0 3-64:5": [0, 0, 4, 4, 4], "1:1": [1] * 5}[table]
    seen = set()
    for run, most in zip(runs, LENGTHS, strict=True):
        assert not of(run, FellBack)
        drafted, left = Counter(event.step for event in of(run, Proposed)), most - 1  # the prefill gives one
        for step in of(run, StepTimed)[1:]:
            wanted = min(by_batch[step.batch_sequences - 1], left - 1)
            assert drafted[step.step] == wanted or (drafter == "ngram" and drafted[step.step] < wanted)
            seen.add(step.batch_sequences)
            left = most - sum(len(c.token_ids) for c in run.events if c.kind == "committed" and c.step <= step.step)
    assert len(seen) > 2  # it is a test of several batch sizes
