"""Runs to draw: one scripted run for each kind of decoding."""

from __future__ import annotations

import pytest

from lab.config import EngineConfig, SamplingParams
from lab.measure import quiet
from lab.trace.events import Event
from tests.visualize.scripted import ScriptedEngine
from visualize.jobs.reducer_process import ReducerClient
from visualize.reduce.frames import Reducer

CONFIGS = {
    "plain": EngineConfig(),
    "no cache": EngineConfig(kv_cache=False),
    "paged": EngineConfig(paged=True, block_size=4),
    "speculative": EngineConfig(speculative="draft"),
    "all": EngineConfig(kv_dtype="int8", paged=True, speculative="draft", num_speculative_tokens=3, block_size=8),
}


def script(
    config: EngineConfig, max_tokens: int = 40, temperature: float = 0.8, logprobs: int = 0, **engine: list[str]
) -> list[Event]:
    sampling = SamplingParams(max_tokens=max_tokens, temperature=temperature, seed=3, logprobs=logprobs)
    return list(ScriptedEngine(**engine).stream("Once upon a time", config, sampling))


@pytest.fixture(params=CONFIGS, scope="session")
def events(request: pytest.FixtureRequest) -> list[Event]:
    return script(CONFIGS[request.param])


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """The look at the machine before a measurement takes no second."""
    monkeypatch.setattr(quiet, "SECONDS", 0.1)


@pytest.fixture(autouse=True, scope="session")
def process() -> None:
    """The reducer process is running, as in a server that has started."""
    ReducerClient(Reducer()).after()
