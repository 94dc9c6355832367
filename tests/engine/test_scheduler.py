"""Scheduling: the cases that broke other engines. What holds for any requests is in ``test_any_requests``."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from lab import EngineConfig, SamplingParams
from lab.engine.engine import Request
from lab.load import new_engine
from lab.trace.events import Admitted, BlockCopied, BlockShared, Preempted, Prefilled, StepTimed
from lab.trace.run import Run
from tests.scripted_engine import LETTERS, PLAIN, VOCABULARY, WORDS, alone, engine
from tests.scripted_model import RememberingModel
from tests.tiny_models import of, tokenizer


def drain(requests: list[Request]) -> list[Run]:
    return [request.result() for request in requests]


def text(length: int, seed: int = 0) -> str:
    generator = torch.Generator().manual_seed(seed)
    return "".join(LETTERS[i] for i in torch.randint(3, (length,), generator=generator))


CACHED = EngineConfig(paged=True, block_size=2, num_blocks=40, enable_prefix_caching=True)
GREEDY = SamplingParams(max_tokens=6, ignore_eos=True)


@pytest.mark.parametrize("length", [1, 2, 7, 8, 9])
def test_a_fully_cached_prompt_still_computes_a_token(length):
    """At least one token is computed, however much is cached."""
    lab, prompt = engine(), text(length)
    first, second = (lab.generate(prompt, CACHED, GREEDY) for _ in range(2))
    assert first.token_ids == second.token_ids == alone(prompt, CACHED, GREEDY)
    (prefilled,) = of(second, Prefilled)
    assert prefilled.cached_tokens == (length - 1) // 2 * 2
    assert next(step.target_tokens for step in of(second, StepTimed)) == length - prefilled.cached_tokens
    assert sum(isinstance(event, BlockShared) for event in second.events) == (length - 1) // 2


def test_a_preempted_request_finds_its_own_blocks_in_the_prefix_cache():
    """The newest request gives up its blocks, and finds what is left of them when it is admitted again."""
    lab = engine()
    config = replace(CACHED, num_blocks=16)
    sampling = SamplingParams(max_tokens=16, ignore_eos=True)
    runs = drain([lab.submit(text(8, seed), config, sampling) for seed in range(3)])
    for seed, run in enumerate(runs):
        assert run.token_ids == alone(text(8, seed), config, sampling)
    assert not of(runs[0], Preempted)
    preempted = [run for run in runs if of(run, Preempted)]
    assert preempted
    back = [admitted for run in preempted for admitted in of(run, Admitted)[1:]]
    assert max(admitted.cached_tokens for admitted in back) > 0
    for run in preempted:
        for event in of(run, Preempted):
            *_, last = of(Run(run.events[: run.events.index(event)]), StepTimed)
            assert event.tokens == last.kv_tokens


def test_a_prompt_in_the_cache_needs_no_room_of_its_own():
    """Two requests of eight blocks each, seven of which they share, run at once in a pool of fifteen."""
    lab, prompt = engine(), text(16)
    config = replace(CACHED, num_blocks=15)
    lab.generate(prompt, config, GREEDY)
    runs = drain([lab.submit(prompt, config, GREEDY) for _ in range(2)])
    assert [of(run, Admitted)[0].running for run in runs] == [1, 2]


def test_a_failed_step_returns_references_to_shared_blocks(monkeypatch):
    """It ends its sequences and frees their blocks; shared blocks stay in the cache."""
    lab, prompt = engine(), text(9)
    lab.generate(prompt, CACHED, GREEDY)
    requests = [lab.submit(prompt, CACHED, GREEDY) for _ in range(2)]
    lab.step()
    (pool,) = lab._cores
    assert max(pool.cache.blocks.references(block) for block in pool.cache.blocks.live_blocks()) == 2
    forward, broken = lab.target.forward, [True]

    def fails_once(*args):
        if broken:
            broken.clear()
            raise RuntimeError("a cosmic ray")
        return forward(*args)

    monkeypatch.setattr(lab.target, "forward", fails_once)
    assert {run.reason for run in drain(requests)} == {"error"}
    assert lab.occupancy().live == 0
    again = lab.generate(prompt, CACHED, GREEDY)
    assert again.token_ids == alone(prompt, CACHED, GREEDY)
    assert of(again, Prefilled)[0].cached_tokens == 8


# -- sharing a prompt ------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 4, 5])
def test_continuations_share_the_prompt_and_copy_its_tail(length):
    lab, prompt = engine(), text(length)
    config = EngineConfig(paged=True, block_size=4, num_blocks=40)
    sampling = SamplingParams(max_tokens=8, temperature=1.0, seed=3, ignore_eos=True)
    runs = drain(lab.prepare(prompt, config, sampling, continuations=3)())
    for i, run in enumerate(runs):
        assert run.token_ids == alone(prompt, config, replace(sampling, seed=3 + i))
    assert len({tuple(run.token_ids) for run in runs}) == 3
    for run in runs[1:]:
        assert of(run, Prefilled)[0].cached_tokens == length - 1
        assert sum(isinstance(event, BlockShared) for event in run.events) == -(-(length - 1) // 4)
    copies = [event.fill for run in runs for event in of(run, BlockCopied)]
    assert len(copies) == (2 if length == 4 else 0)  # three share a tail of three tokens: two copy, one writes in place


@pytest.mark.parametrize("config", [PLAIN, replace(PLAIN, paged=False), EngineConfig(kv_cache=False)])
def test_continuations_wait_for_the_first_only_where_blocks_are_shared(config):
    sampling = SamplingParams(max_tokens=8, ignore_eos=True)
    runs = drain(engine().prepare(text(5), config, sampling, continuations=3)())
    alone = [of(run, StepTimed)[0].batch_sequences for run in runs]
    assert alone == ([1, 3, 3] if config.paged else [3, 3, 3])


# -- limits ------------------------------------------------------------------------------------------


def test_a_long_prompt_is_prefilled_in_chunks_beside_decoding():
    """No request's tokens wait for another's whole prompt."""
    lab = engine(max_num_batched_tokens=33)
    config = replace(PLAIN, num_blocks=60)
    talking = lab.submit(text(3), config, SamplingParams(max_tokens=20, ignore_eos=True))
    lab.step()
    reading = [lab.submit(text(36, seed), config, SamplingParams(max_tokens=2, ignore_eos=True)) for seed in (1, 2)]
    runs = drain([talking, *reading])
    assert [len(run.token_ids) for run in runs] == [20, 2, 2]
    steps = [step.target_tokens for step in of(runs[1], StepTimed)]
    assert steps == [32, 4, 1]
    assert all(step.batch_tokens <= 33 for run in runs for step in of(run, StepTimed))
    assert len(of(runs[0], StepTimed)) == 20  # one token in every step, whatever the others prefill


@pytest.mark.parametrize(
    ("weights", "tokens"), [(0, 512), (39_000_000, 512), (40_000_000, 256), (106_000_000, 128), (1_500_000_000, 64)]
)
def test_a_cpu_reads_a_prompt_in_smaller_chunks_for_a_larger_model(weights, tokens):
    """Whoever presses Stop waits for the end of a step."""
    model = RememberingModel(VOCABULARY, WORDS, context_length=1000)
    model.layer_weights = weights
    request = new_engine(model, tokenizer()).submit(text(600), PLAIN, SamplingParams(max_tokens=1))
    first, *_ = of(drain([request])[0], StepTimed)
    assert first.target_tokens == tokens


def test_a_draft_prefills_a_long_prompt_in_the_same_chunks(monkeypatch):
    lab, read = engine(max_num_batched_tokens=33), []
    forward = lab.draft.forward
    monkeypatch.setattr(lab.draft, "forward", lambda ids, *rest: (read.append(len(ids)), forward(ids, *rest))[1])
    config = replace(PLAIN, num_blocks=80, speculative="draft", num_speculative_tokens=2)
    sampling = SamplingParams(max_tokens=4, ignore_eos=True)
    runs = drain([lab.submit(text(36, seed), config, sampling) for seed in range(2)])
    assert [run.token_ids for run in runs] == [alone(text(36, seed), config, sampling) for seed in range(2)]
    prefilled = [step for step in of(runs[0], StepTimed) if step.step_kind == "prefill"]
    assert [step.target_tokens for step in prefilled] == [33, 3]
    assert read[:2] == [step.batch_tokens for step in prefilled] == [33, 33]  # then 3, and 30 of the second prompt
    assert max(read) <= 33
    assert all(step.draft_flops for step in prefilled)
    read.clear()
    lab.generate(text(36), config, replace(sampling, max_tokens=2))  # too short for a proposal
    assert read == []


def test_a_draft_is_given_no_longer_text_than_it_was_made_for(monkeypatch):
    """Proposals included, the last of which it does not read. Nothing of a prompt that leaves no room for one."""
    target, draft = (RememberingModel(VOCABULARY, WORDS, context_length=length) for length in (40, 20))
    forward, read = draft.forward, []
    monkeypatch.setattr(draft, "forward", lambda ids, at, *rest: (read.extend(at.tolist()), forward(ids, at, *rest))[1])
    lab, config = new_engine(target, tokenizer(), draft), replace(PLAIN, speculative="draft", num_speculative_tokens=5)
    sampling = SamplingParams(max_tokens=30, ignore_eos=True)
    assert lab.generate(text(3), config, sampling).token_ids == alone(text(3), config, sampling)
    assert max(read) == 18
    read.clear()
    assert lab.generate(text(19), config, sampling).reason == "length"
    assert read == []


@pytest.mark.parametrize("found", [True, False])
def test_a_draft_does_not_read_again_what_is_shared(monkeypatch, found):
    """Neither what a prefix was found for nor what another continuation of the prompt has read."""
    lab, read = engine(), []
    forward = lab.draft.forward
    monkeypatch.setattr(lab.draft, "forward", lambda ids, *rest: (read.append(len(ids)), forward(ids, *rest))[1])
    config = replace(CACHED, enable_prefix_caching=found, speculative="draft", num_speculative_tokens=2)
    if found:
        expected = lab.generate(text(14), config, GREEDY).token_ids
        runs = [lab.generate(text(14), config, GREEDY)]
    else:
        expected = alone(text(14), config, GREEDY)
        runs = drain(lab.prepare(text(14), config, GREEDY, continuations=2)())
    assert [run.token_ids for run in runs] == [expected] * len(runs)
    assert len([count for count in read if count > 6]) == 1  # whole only once


def test_seats_are_limited_and_given_in_order_of_arrival():
    lab = engine(max_num_seqs=2)
    requests = [lab.submit(text(4, seed), PLAIN, SamplingParams(max_tokens=5 + seed)) for seed in range(5)]
    lab.step()
    [pool] = lab._cores
    assert not pool.scheduler.may_admit  # so that the next step may be launched ahead
    runs = drain(requests)
    assert max(step.batch_sequences for run in runs for step in of(run, StepTimed)) == 2
    assert [of(run, Admitted)[0].waiting for run in runs] == [4, 3, 2, 1, 0]
    assert [of(run, Admitted)[0].running for run in runs] == [1, 2, 2, 2, 2]


def test_a_step_stays_within_its_token_budget_with_speculation():
    config = EngineConfig(paged=True, block_size=2, speculative="draft", num_speculative_tokens=8)
    lab = engine(max_num_seqs=8, max_num_batched_tokens=40)
    steps, sampling = [], SamplingParams(max_tokens=12)
    lab.generate(text(4), config, sampling)
    [pool] = lab._cores
    scheduler, schedule = pool.scheduler, pool.scheduler.schedule

    def watched(**how):
        turns = schedule(**how)
        steps.append(sum(turn.num_tokens + turn.num_draft_tokens for turn in turns))
        return turns

    scheduler.schedule = watched
    requests = [lab.submit(text(4, seed), config, sampling) for seed in range(8)]
    lab.step()
    for _ in range(3):  # all but one, and when that is done they come back together, and propose at once
        scheduler.shrink()
    drain(requests)
    assert 9 < max(steps) <= 40
