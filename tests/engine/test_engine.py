"""What a run promises: its events are consistent, it can be stopped, and it fails gracefully."""

from __future__ import annotations

import threading
from collections import Counter
from unittest.mock import Mock

import pytest
import torch
from transformers import GenerationConfig

from lab import ConfigError, EngineConfig, PromptError, SamplingParams
from lab.load import new_engine
from lab.trace.events import (
    BlockAllocated,
    BlockFreed,
    Bonus,
    Committed,
    Finished,
    Prefilled,
    Proposed,
    Recovered,
    RunStarted,
    StepTimed,
    Verified,
)
from tests import tiny_models
from tests.engine.test_parity import COMBINATIONS, describe
from tests.scripted_model import RememberingModel, ScriptedModel
from tests.tiny_models import of

PROMPT = "The king had three daughters"
SPECULATE = EngineConfig(paged=True, block_size=4, speculative="draft", num_speculative_tokens=4)
SAMPLE = SamplingParams(max_tokens=60, temperature=1.0, seed=11, ignore_eos=True)


@pytest.fixture(scope="module")
def lab():
    return tiny_models.engine("llama", "good")


@pytest.fixture(autouse=True)
def all_blocks_are_given_back(lab):
    yield
    assert lab.occupancy().live == 0


# -- consistent events ----------------------------------------------------------------------


@pytest.mark.parametrize("config", COMBINATIONS, ids=describe)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_events_are_consistent(lab, config, temperature):
    run = lab.generate(PROMPT, config, SamplingParams(max_tokens=30, temperature=temperature, seed=4, ignore_eos=True))
    assert isinstance(run.events[0], RunStarted)
    assert isinstance(run.events[-1], Finished)
    assert run.started.draft == ("good" if config.speculative == "draft" else None)
    assert run.started.num_blocks == lab.default_num_blocks(config)
    assert [event.tokens for event in of(run, Prefilled)] == [len(run.prompt_token_ids)]
    assert [a.t_ms <= b.t_ms for a, b in zip(run.events, run.events[1:], strict=False)].count(False) == 0
    assert lab.tokenizer.decode(run.token_ids, skip_special_tokens=True) == run.text

    steps = of(run, StepTimed)
    assert [step.step for step in steps] == list(range(len(steps)))
    assert steps[0].step_kind == "prefill"
    for step in steps:
        events = [event for event in run.events if getattr(event, "step", None) == step.step]
        proposed = [event for event in events if isinstance(event, Proposed)]
        verified = [event for event in events if isinstance(event, Verified)]
        after = [event for event in events if isinstance(event, (Recovered, Bonus))]
        (commit,) = [event for event in events if isinstance(event, Committed)]
        assert commit.text == "".join(commit.pieces)
        assert len(commit.token_ids) == len(commit.origins) == len(commit.pieces) == len(commit.probabilities)
        assert (step.step_kind == "verify") == bool(proposed)
        parts = step.draft_ms + step.verify_ms + step.sample_ms + step.rest_ms
        assert parts == pytest.approx(step.total_ms)
        if not proposed:
            assert not verified
            assert not after
            assert commit.origins == ("plain",)
            continue
        accepted = [event for event in verified if event.accepted]
        assert [event.token_id for event in verified] == [event.token_id for event in proposed[: len(verified)]]
        assert len(verified) == min(len(accepted) + 1, len(proposed))
        for event in verified:
            assert (event.u is None) == (temperature == 0)
            if event.u is not None:
                assert event.accepted == (event.u * event.q < event.p)
        (last,) = after
        assert isinstance(last, Bonus) == (len(accepted) == len(proposed))
        assert list(commit.token_ids) == [event.token_id for event in accepted] + [last.token_id]
        assert commit.origins == ("accepted",) * len(accepted) + (last.kind,)


@pytest.mark.slow
@pytest.mark.parametrize("config", COMBINATIONS, ids=describe)
def test_block_events_follow_the_cache(lab, config):
    run = lab.generate(PROMPT, config, SAMPLE)
    size, owned, reserved, peak = config.block_size, {}, 0, 0
    for event in run.events:
        if isinstance(event, BlockAllocated):
            assert event.block not in owned
            assert event.index == len(owned)
            owned[event.block] = event.owner
            reserved = max(reserved, len(owned))
            peak = max(peak, len(owned))
        elif isinstance(event, BlockFreed):
            assert owned.pop(event.block) == event.owner
        elif isinstance(event, StepTimed) and config.kv_cache:
            assert event.kv_reserved_bytes == reserved * run.started.block_bytes
            assert event.kv_used_bytes * size == event.kv_tokens * run.started.block_bytes
            needed = -(-event.kv_tokens // size)
            total = -(-(len(run.prompt_token_ids) + SAMPLE.max_tokens) // size)
            assert len(owned) == (needed if config.paged else total)
            reserved = len(owned)
    assert owned == {}
    assert run.metrics.kv_reserved_bytes == peak * run.started.block_bytes
    if not config.kv_cache:
        assert run.started.num_blocks == 0
        assert run.metrics.kv_reserved_bytes == 0


# -- repeating and interleaving ------------------------------------------------------------


def test_the_same_seed_repeats_a_run_and_another_does_not(lab):
    runs = [lab.generate(PROMPT, SPECULATE, SamplingParams(max_tokens=40, temperature=1.0, seed=s)) for s in (1, 1, 2)]
    assert runs[0].token_ids == runs[1].token_ids != runs[2].token_ids


def test_without_a_seed_one_is_picked_and_recorded(lab):
    first = lab.generate(PROMPT, SPECULATE, SamplingParams(max_tokens=40, temperature=1.0))
    again = lab.generate(PROMPT, SPECULATE, first.sampling)
    assert first.token_ids == again.token_ids
    assert first.sampling.seed is not None
    assert lab.generate(PROMPT, sampling=SamplingParams(max_tokens=1, seed=0)).sampling.seed == 0


# -- ending -------------------------------------------------------------------------------


def test_cancelling_ends_with_an_event(lab):
    cancelled, events = threading.Event(), []
    for event in lab.stream(PROMPT, SPECULATE, SAMPLE, cancelled=cancelled):
        events.append(event)
        if sum(isinstance(e, StepTimed) for e in events) == 3:
            cancelled.set()
    assert sum(isinstance(e, StepTimed) for e in events) == 3
    assert isinstance(events[-1], Finished)
    assert events[-1].reason == "cancelled"
    assert any(isinstance(e, BlockFreed) for e in events)


def test_a_stream_closed_while_another_is_stepped_leaves_nothing_behind(lab):
    """Even if no further step is made."""
    one, other = lab.stream(PROMPT, SPECULATE, SAMPLE), lab.stream(PROMPT, SPECULATE, SAMPLE)
    for stream in (one, other):
        next(stream)
    watch = lab._step

    def step() -> bool:
        worked = watch()
        other.close()  # by another thread, while this one drives
        return worked

    lab._step = step
    try:
        while not isinstance(next(one), StepTimed):
            pass
        assert lab.counts() == (1, 0)
    finally:
        del lab._step
        one.close()


def test_a_token_that_the_model_does_not_know_is_refused():
    lab = new_engine(RememberingModel(93, 60, context_length=40), tiny_models.tokenizer())
    with pytest.raises(PromptError, match=r"token '~', number 93 of the tokenizer's.*knows only 93\. Leave it out"):
        lab.generate("~")


@pytest.mark.parametrize(("given", "end"), [(None, 256), (0, 0), (7, 7), ([5, 7], 7), ([5, 7], 5)])
def test_a_text_ends_with_the_tokens_that_the_model_gives_or_else_with_the_tokenizers(given, end):
    table = torch.zeros(257, 257)
    table[:, end] = 1
    model = ScriptedModel(table)
    model.model.generation_config = GenerationConfig(eos_token_id=given)
    run = new_engine(model, tiny_models.tokenizer()).generate("A fox")
    assert (run.reason, run.token_ids) == ("eos", [end])


def test_events_of_a_round_end_where_the_text_ends(lab):
    sampling = SamplingParams(max_tokens=60, temperature=1.0, seed=11)
    whole = lab.generate(PROMPT, SPECULATE, sampling)
    first = next(
        piece
        for before, (piece, *_), origins in (
            (whole.text[: whole.text.index(event.text)], event.pieces, event.origins) for event in of(whole, Committed)
        )
        if origins[:2] == ("accepted",) * 2 and piece and piece not in before
    )
    run = lab.generate(PROMPT, SPECULATE, SamplingParams(max_tokens=60, temperature=1.0, seed=11, stop=first))
    last = of(run, Committed)[-1]
    assert set(last.origins) == {"accepted"}
    of_it = [event for event in run.events if getattr(event, "step", None) == last.step]
    assert sum(isinstance(event, Verified) for event in of_it) >= 2, (
        "the text should end behind several accepted tokens"
    )
    assert not any(isinstance(event, (Recovered, Bonus)) for event in of_it)


def test_end_of_text_ends_the_run_even_among_accepted_proposals():
    lab = tiny_models.engine("llama", "identical", seed=3)
    plain = lab.generate(PROMPT, EngineConfig(), SamplingParams(max_tokens=250))
    drafted = lab.generate(PROMPT, SPECULATE, SamplingParams(max_tokens=250))
    assert plain.token_ids == drafted.token_ids
    assert plain.reason == drafted.reason == "eos"
    assert plain.token_ids.index(256) == len(plain.token_ids) - 1


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 7])
def test_a_run_gives_exactly_as_many_tokens_as_asked_for(lab, max_tokens):
    run = lab.generate(PROMPT, SPECULATE, SamplingParams(max_tokens=max_tokens, ignore_eos=True))
    assert len(run.token_ids) == max_tokens
    assert run.reason == "length"


# -- refusing and failing --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "config", "error", "word"),
    [
        ("", {}, PromptError, "empty"),
        ("a\ud800b", {}, PromptError, "position 1"),
        (None, {}, PromptError, "NoneType"),
        ("a" * tiny_models.CONTEXT, {}, PromptError, "prompt and output together"),
        ("a" * 20, {"block_size": 4, "num_blocks": 7}, PromptError, "the pool has 7"),
        (PROMPT, {"num_blocks": 9_999}, ConfigError, "num_blocks=9,999 does not fit"),
        (PROMPT, {"speculative": "draft"}, ConfigError, "needs a draft model"),
        (PROMPT, {"speculative": "early_exit", "early_exit_layer": 2}, ConfigError, "Choose from 1 to 1"),
    ],
)
def test_what_can_never_be_decoded_is_refused_at_once(prompt, config, error, word):
    lab = tiny_models.engine("llama", kv_bytes=10**6)
    with pytest.raises(error, match=word):
        lab.stream(prompt, EngineConfig(**config), SAMPLE)
    assert lab.generate("a" * (tiny_models.CONTEXT - 1), EngineConfig(block_size=8)).reason == "length"


def test_a_failure_in_mid_run_ends_it_with_the_reason(lab, monkeypatch):
    calls = Counter()
    forward = lab.target.forward

    def fails_later(*args):
        calls["n"] += 1
        if calls["n"] > 4:
            raise RuntimeError("the device is gone")
        return forward(*args)

    monkeypatch.setattr(lab.target, "forward", fails_later)
    run = lab.generate(PROMPT, SPECULATE, SAMPLE)
    assert run.reason == "error"
    assert "the device is gone" in run.finished.message
    assert run.text


@pytest.mark.parametrize(
    "fault", ["an illegal memory access was encountered", "device-side assert triggered", "unspecified launch failure"]
)
def test_a_fault_that_a_gpu_does_not_recover_from_is_reported_as_one(lab, monkeypatch, fault):
    """Every later request fails alike, until the process is started again."""
    error = RuntimeError(f"CUDA error: {fault}\nCUDA kernel errors might be asynchronously reported")
    monkeypatch.setattr(lab.target, "forward", Mock(side_effect=error))
    run = lab.generate(PROMPT, EngineConfig(), SAMPLE)
    assert run.finished.message == (
        f"The GPU met a fault after which this process can no longer use it (RuntimeError: CUDA error: {fault}). Start "
        "the program again."
    )


def test_non_finite_logits_end_the_run(lab, monkeypatch):
    forward = lab.target.forward
    monkeypatch.setattr(lab.target, "forward", lambda *args: forward(*args) * torch.nan)
    for sampling in (SAMPLE, SamplingParams()):
        run = lab.generate(PROMPT, EngineConfig(), sampling)
        assert run.reason == "error"
        assert "not finite" in run.finished.message
        assert not any(isinstance(event, StepTimed) for event in run.events)  # a step that gave nothing
