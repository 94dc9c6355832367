"""The shared pools, rebuilt from every sequence's events: whatever the engine does, the squares show what it holds."""

from __future__ import annotations

import threading
import tracemalloc
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab import Engine, EngineConfig, SamplingParams
from lab.load import new_engine
from lab.trace.events import Event
from lab.trace.recorder import EventListener
from tests.scripted_model import RememberingModel
from tests.tiny_models import tokenizer
from tests.visualize.conftest import script
from tests.visualize.crowd import LETTERS, WORDS
from visualize.pages.workshop import shared_pools as pools
from visualize.pages.workshop.shared_pools import IGNORED, SharedPool, SharedPools

SETTINGS = [
    EngineConfig(paged=True, block_size=2, num_blocks=12),
    EngineConfig(paged=True, block_size=2, num_blocks=12, speculative="draft", num_speculative_tokens=2),
    EngineConfig(paged=True, block_size=2, num_blocks=12, enable_prefix_caching=True),
    EngineConfig(paged=False, block_size=4, num_blocks=10),
    EngineConfig(kv_cache=False),
]


def hearing(shared: SharedPools, model: str) -> EventListener:
    return lambda owner, seconds, event: None if isinstance(event, IGNORED) else shared.take(model, owner, event)


WHO = st.tuples(
    st.integers(0, len(SETTINGS) - 1), st.text(alphabet=LETTERS[:2], min_size=1, max_size=6), st.integers(1, 12)
)


@settings(max_examples=40)
@given(st.lists(st.tuples(WHO, st.integers(0, 3), st.booleans()), min_size=1, max_size=6))
def test_the_squares_show_what_the_engine_holds(visits: list) -> None:
    heard: list[tuple[int, Event]] = []
    target, draft = (RememberingModel(257, WORDS, salt=salt, context_length=40) for salt in (0, 1))
    engine = new_engine(
        target, tokenizer(), draft, max_num_seqs=3, on_event=lambda owner, seconds, event: heard.append((owner, event))
    )
    shared, under_way = SharedPools(), []

    def listen() -> None:
        for owner, event in heard:
            if not isinstance(event, IGNORED):
                shared.take("tiny", owner, event)
        heard.clear()

    def agrees() -> None:
        listen()
        running, waiting = engine.counts()
        assert shared.counts() == (running, waiting)
        pools = {pool.config: pool for pool in engine._cores if pool.cache}
        for (_, setting), seen in shared._pools.items():
            if setting in pools:
                truth = pools[setting].cache.blocks.occupancy()
                assert seen.blocks.occupancy().live == truth.live
                if seen.guests:  # otherwise its cached blocks may be gone, which shows at its next use
                    assert seen.blocks.occupancy() == truth
                record = seen.record()
                held = [owner for owners in record["blocks"]["owners"] for owner in owners]
                assert {g["number"]: g["blocks"] for g in record["guests"]} == {
                    number: held.count(number) for number in seen.guests
                }

    for (which, prompt, tokens), steps, stop in visits:
        cancelled = threading.Event()
        sampling = SamplingParams(max_tokens=tokens, temperature=1.0, seed=tokens, ignore_eos=True)
        stream = engine.stream(prompt, SETTINGS[which], sampling, cancelled=cancelled)
        next(stream)
        under_way.append(stream)
        for _ in range(steps):
            engine.step()
            agrees()
        if stop:
            cancelled.set()
    while engine.step():
        agrees()
    agrees()
    assert shared.counts() == (0, 0)
    assert not shared.others()


def test_the_pool_with_most_sequences_is_shown_and_the_others_are_listed() -> None:
    shared = SharedPools()
    assert shared.shown() is None

    def engine_of(model: str) -> Engine:
        return new_engine(
            RememberingModel(257, WORDS, context_length=40),
            tokenizer(),
            on_event=hearing(shared, model),
        )

    one, other = engine_of("one"), engine_of("other")
    sampling = SamplingParams(max_tokens=4, seed=1, ignore_eos=True)
    first = [one.submit("ab", SETTINGS[0], sampling)]
    assert shared.shown().name == "one, KV dtype Auto, blocks of 2"
    later = [other.submit("ab", SETTINGS[0], sampling)]
    assert shared.shown().name == "one, KV dtype Auto, blocks of 2", "on a tie, the pool shown stays"
    assert shared.others() == ["other, KV dtype Auto, blocks of 2: 0 running, 1 waiting"]
    later.append(other.submit("ab", SETTINGS[0], sampling))
    other.step()
    assert shared.shown().name == "other, KV dtype Auto, blocks of 2"
    assert {guest["state"] for guest in shared.shown().record()["guests"]} == {"running"}
    assert shared.counts() == (2, 1)
    for request in [*first, *later]:
        request.result()
    stopped = threading.Event()
    stopped.set()
    assert list(one.stream("ab", SETTINGS[0], sampling, cancelled=stopped))[-1].reason == "cancelled"
    assert shared.done == 3, "one that was stopped is not done"
    assert shared.shown().name == "other, KV dtype Auto, blocks of 2", "with no sequences, the pool shown stays"
    for count in range(13, 33):
        config = EngineConfig(paged=True, block_size=2, num_blocks=count)
        one.submit("ab", config, sampling).result()
    assert len(shared._pools) <= 3, "empty pools are forgotten when another is added"


def test_a_pool_is_named_after_what_tells_it_from_others() -> None:
    names = []
    for config in SETTINGS:
        shared = SharedPools()
        engine = new_engine(RememberingModel(257, WORDS, context_length=40), tokenizer(), on_event=hearing(shared, "m"))
        engine.submit("ab", replace(config, speculative="off"), SamplingParams(max_tokens=2))
        names.append(shared.shown().name)
    assert names == [
        "m, KV dtype Auto, blocks of 2",
        "m, KV dtype Auto, blocks of 2",
        "m, KV dtype Auto, blocks of 2, prefix caching",
        "m, KV dtype Auto, blocks of 4, contiguous",
        "m, no cache",
    ]


def test_a_run_that_failed_is_over_and_not_done() -> None:
    shared, (begun, *_, ended) = SharedPools(), script(EngineConfig(), max_tokens=1)
    for event in (begun, replace(ended, reason="error", message="No memory.")):
        shared.take("m", 0, event)
    assert (shared.counts(), shared.done) == ((0, 0), 0)


def test_a_huge_pool_costs_no_more_than_what_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is sent ten times a second, and anyone who may call the engine chooses its size."""
    monkeypatch.setattr(pools, "MOST_BLOCKS", 3)
    tracemalloc.start()
    reported = SharedPool("huge", 10_000_000, 1).record()
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert {len(rows) for rows in reported["blocks"].values()} == {3}
    assert sum(reported["occupancy"].values()) == 10_000_000
    assert most < 1_000_000, "bytes"


def test_nobodys_text_is_in_the_record() -> None:
    shared = SharedPools()
    engine = new_engine(
        RememberingModel(257, WORDS, context_length=40),
        tokenizer(),
        on_event=hearing(shared, "m"),
    )
    engine.submit("abba", SETTINGS[0], SamplingParams(max_tokens=4, seed=1))
    engine.step()
    reported = str(shared.shown().record())
    assert "abba" not in reported
    numbers = {"number", "wanted", "tokens", "blocks", "found", "preempted"}
    assert set(shared.shown().record()["guests"][0]) == numbers | {"state"}
