"""Any requests, arriving in any order, end with the tokens that each would have had alone."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from lab import EngineConfig, SamplingParams
from lab.engine.engine import Request
from lab.engine.scheduler import Scheduler
from lab.engine.step_limits import StepLimits
from lab.trace.events import Admitted, Event, FellBack, Finished, Preempted, Prefilled, StepTimed
from lab.trace.recorder import Recorder
from tests.scripted_engine import LETTERS, alone, engine
from tests.tiny_models import of

PROMPTS = st.text(alphabet=LETTERS[:3], min_size=1, max_size=14)
SAMPLINGS = st.builds(
    SamplingParams,
    max_tokens=st.integers(1, 16),
    temperature=st.sampled_from([0.0, 1.0]),
    top_k=st.sampled_from([0, 3]),
    seed=st.integers(0, 99),
    stop=st.sampled_from([(), (LETTERS[5],), (LETTERS[1] + LETTERS[2],)]),
)
OWN = st.fixed_dictionaries(
    {
        "speculative": st.sampled_from(["off", "draft", "eagle3", "mtp", "dflash", "dspark", "ngram", "synthetic"]),
        "num_speculative_tokens": st.integers(1, 5),
        "cache_priority": st.integers(0, 2),
        "prompt_lookup_min": st.just(1),
    }
)
POOLS = st.one_of(
    st.just({"kv_cache": False}),
    st.fixed_dictionaries({"block_size": st.sampled_from([1, 2, 4]), "paged": st.just(False)}),
    st.fixed_dictionaries(
        {
            "block_size": st.sampled_from([1, 2, 4]),
            "paged": st.just(True),
            "enable_prefix_caching": st.booleans(),
            "eviction": st.sampled_from(["lru", "priority"]),
        }
    ),
)


class SchedulerMachine(RuleBasedStateMachine):
    """Requests arrive, are cancelled, and are computed a step at a time."""

    @initialize(pool=POOLS, tight=st.integers(0, 6), seats=st.integers(1, 5), budget=st.sampled_from([33, 40, 64]))
    def begin(self, pool, tight, seats, budget):
        self.heard: list[Event] = []
        self.engine = engine(
            max_num_seqs=seats,
            max_num_batched_tokens=budget,
            on_event=lambda owner, seconds, event: self.heard.append(event),
        )
        if pool.get("kv_cache", True):  # as many blocks as the longest request needs, and hardly more
            pool = pool | {"num_blocks": -(-30 // pool["block_size"]) + tight}
        self.pool, self.seats, self.budget = pool, seats, budget
        self.asked: list[tuple[Request, str, EngineConfig, SamplingParams, bool]] = []

    @rule(prompt=PROMPTS, sampling=SAMPLINGS, own=OWN)
    def submit(self, prompt, sampling, own):
        config = EngineConfig(**self.pool, **own)
        self.asked.append((self.engine.submit(prompt, config, sampling), prompt, config, sampling))

    @rule(prompt=PROMPTS, sampling=SAMPLINGS, own=OWN, count=st.integers(2, 3))
    def submit_continuations(self, prompt, sampling, own, count):
        config = EngineConfig(**self.pool, **own)
        requests = self.engine.prepare(prompt, config, sampling, continuations=count)()
        for i, request in enumerate(requests):
            self.asked.append((request, prompt, config, replace(sampling, seed=sampling.seed + i)))

    @rule(which=st.integers(0, 20))
    def cancel(self, which):
        if which < len(self.asked):
            self.asked[which][0].cancel()

    @rule(count=st.integers(1, 6))
    def steps(self, count):
        for _ in range(count):
            self.heard.clear()
            self.engine.step()
            joined, gave_up = (any(isinstance(event, kind) for event in self.heard) for kind in (Admitted, Preempted))
            assert not (joined and gave_up), "a request was admitted into blocks freed by preemption in the same step"

    @invariant()
    def the_pool_adds_up(self):
        for pool in self.engine._cores:
            running, waiting = pool.scheduler.running, pool.scheduler.waiting
            assert len(running) <= self.seats
            for queue in (running, waiting):  # oldest first, including those preempted or moved from another pool
                assert [sequence.seq_id for sequence in queue] == sorted(sequence.seq_id for sequence in queue)
            if pool.cache:
                blocks = pool.cache.blocks
                held = [block for sequence in running for block in sequence.table.blocks]
                assert sum(blocks.occupancy()) == blocks.num_blocks
                assert {block: held.count(block) for block in set(held)} == {
                    block: blocks.references(block) for block in blocks.live_blocks()
                }

    def teardown(self):
        left = 0
        while self.engine.step():
            left += 1
            assert left < 1000, "some requests never end"
        for request, prompt, config, sampling in self.asked:
            run = request.result()
            assert isinstance(run.finished, Finished)
            expected = alone(prompt, config, sampling)
            if run.reason == "cancelled":
                assert run.token_ids == expected[: len(run.token_ids)]
            else:
                assert run.reason in ("length", "stop", "eos"), run.finished
                assert run.token_ids == expected
            assert not of(run, FellBack)
            for event in run.events:
                if isinstance(event, StepTimed) and config.kv_cache:
                    assert event.batch_tokens <= self.budget
            for prefilled in of(run, Prefilled):
                before = run.events[: run.events.index(prefilled)]
                admitted = [event for event in before if isinstance(event, Admitted)]
                assert prefilled.cached_tokens == min(event.cached_tokens for event in admitted)
        assert self.engine.occupancy().live == 0


SchedulerMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=25)
TestScheduler = pytest.mark.slow(SchedulerMachine.TestCase)


@given(st.lists(st.integers(), unique=True))
def test_a_queue_is_ordered_by_age_whatever_the_order_of_joining(orders):
    """Every other one is running when the newer half of those is preempted: an older one may be waiting by then."""
    scheduler = Scheduler(None, None, lambda sequence, running: 0, StepLimits(1, 1))
    its = {"computed": 0, "recorder": Recorder(), "release": lambda: None}
    scheduler.running = [SimpleNamespace(seq_id=order, **its) for order in sorted(orders[::2])]
    for order in orders[1::2]:
        scheduler.add(SimpleNamespace(seq_id=order, **its))
    scheduler.shrink()
    preempted = sorted(orders[::2])[max(1, len(orders[::2]) // 2) :]
    assert [sequence.seq_id for sequence in scheduler.waiting] == sorted(orders[1::2] + preempted)
