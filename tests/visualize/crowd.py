"""Many sequences to draw, decoded by the real engine with a model that has no weights (``tests.scripted_model``)."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from lab.config import EngineConfig, SamplingParams
from lab.engine.engine import Engine
from lab.load import new_engine
from lab.measure.throughput import arrivals
from lab.measure.workload import PlannedRequest
from lab.trace.recorder import BatchStep
from tests.scripted_model import RememberingModel
from tests.tiny_models import tokenizer
from tests.visualize.picture import Picture
from visualize.charts import pool_charts as figures
from visualize.charts.base import empty

WORDS = 8
LETTERS = tokenizer().decode(list(range(WORDS)))


def engine() -> Engine:
    target, draft = (RememberingModel(257, WORDS, salt=salt, context_length=40) for salt in (0, 1))
    return new_engine(target, tokenizer(), draft)


ENGINE = engine()


def job(prompt: str, tokens: int, seed: int = 0, continuations: int = 1) -> PlannedRequest:
    sampling = SamplingParams(max_tokens=tokens, temperature=1.0, seed=seed, ignore_eos=True)
    return PlannedRequest(prompt, sampling, continuations)


def lengths(jobs: list[PlannedRequest]) -> list[int]:
    """Tokens of each sequence's output."""
    return [job.sampling.max_tokens for job in jobs for _ in range(job.continuations)]


def ran(jobs: list[PlannedRequest], every: int = 0, seats: int = 8, **pool: Any) -> list[BatchStep]:
    config = EngineConfig(**({"paged": True, "block_size": 2} | pool))
    return list(arrivals(ENGINE, jobs, config, every=every, max_num_seqs=seats))


JOBS = st.lists(
    st.builds(
        job,
        st.text(alphabet=LETTERS[:2], min_size=1, max_size=12),
        st.integers(1, 16),
        st.integers(0, 9),
        st.sampled_from([1, 1, 1, 3]),
    ),
    min_size=1,
    max_size=7,
)
POOLS = st.one_of(
    st.fixed_dictionaries({"block_size": st.sampled_from([1, 2, 4]), "paged": st.just(False)}),
    st.fixed_dictionaries(
        {
            "block_size": st.sampled_from([1, 2, 4]),
            "enable_prefix_caching": st.booleans(),
            "speculative": st.sampled_from(["off", "draft", "ngram"]),
            "prompt_lookup_min": st.just(1),
        }
    ),
)


@st.composite
def runs(draw: st.DrawFn) -> tuple[list[PlannedRequest], list[BatchStep], int]:
    """The jobs, the steps, and the pool's size: just enough for the longest sequence, or a little more."""
    jobs, pool = draw(JOBS), draw(POOLS)
    num_blocks = -(-28 // pool["block_size"]) + draw(st.integers(0, 5))
    steps = ran(jobs, draw(st.integers(0, 4)), draw(st.integers(1, 5)), num_blocks=num_blocks, **pool)
    return jobs, steps, num_blocks


def picture() -> Picture:
    return Picture(empty(figures.CHARTS))


def table(shown: Picture, name: str) -> list[dict[str, Any]]:
    """A table of the page as rows."""
    columns = shown.columns[name][0]
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
