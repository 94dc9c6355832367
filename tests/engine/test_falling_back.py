"""Failures injected in mid-run do not end the run: it goes on as plain decoding would."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from unittest.mock import Mock

import pytest
import torch

from lab import ConfigError, EngineConfig, PromptError, SamplingParams
from lab.engine import core as pool
from lab.engine import cores as pools
from lab.engine import failures
from lab.kv_cache.formats import Int4Layer, Int8Layer
from lab.kv_cache.storage import KVStorage
from lab.load import new_engine
from lab.trace.events import BlockAllocated, BlockStored, FellBack, Proposed, RunStarted, StepTimed
from lab.trace.run import Run
from tests import tiny_models
from tests.scripted_model import ScriptedModel
from tests.tiny_models import PANICS_AT, of

PROMPT = "The king had three daughters"
PLAIN = EngineConfig(paged=True, block_size=4)
FAILURES = {
    "an exception": (RuntimeError("the draft is gone"), "RuntimeError: the draft is gone"),
    "out of memory": (torch.OutOfMemoryError("no more"), "ran out of memory"),
    "not finite": (None, "not finite"),
}


def failing(forward, after: int, error: Exception | None):
    """``forward``, but from call number ``after`` on it raises ``error``, or returns NaN."""
    calls = iter(range(10**6))

    def wrapped(*args):
        if next(calls) < after:
            return forward(*args)
        if error:
            raise error
        return forward(*args) * torch.nan

    return wrapped


@pytest.fixture
def lab():
    return tiny_models.engine("llama", "good")


@pytest.mark.parametrize("kind", FAILURES)
@pytest.mark.parametrize("after", [0, 1, 11])
def test_a_failing_draft_falls_back_to_plain_decoding(lab, monkeypatch, kind, after):
    """In the prefill, in a round's first proposal or in its last: the text is that of plain decoding."""
    sampling = SamplingParams(max_tokens=40, ignore_eos=True)
    plain = lab.generate(PROMPT, PLAIN, sampling)
    error, reason = FAILURES[kind]
    monkeypatch.setattr(lab.draft, "forward", failing(lab.draft.forward, after, error))
    run = lab.generate(PROMPT, replace(PLAIN, speculative="draft"), sampling)
    assert run.token_ids == plain.token_ids
    assert run.reason == "length"
    (event,) = of(run, FellBack)
    assert event.part == "drafter"
    assert reason in event.reason
    at = run.events.index(event)
    later = run.events[at:]
    assert not any(isinstance(event, Proposed) for event in later)
    assert all(step.step_kind != "verify" for step in later[1:] if isinstance(step, StepTimed)) or error is None
    assert lab.occupancy().live == 0


def test_a_failing_draft_affects_only_the_requests_that_use_it(lab, monkeypatch):
    """In one batch: the requests that use it fall back, the others are unaffected."""
    sampling = SamplingParams(max_tokens=30, ignore_eos=True)
    plain = lab.generate(PROMPT, PLAIN, sampling).token_ids
    monkeypatch.setattr(lab.draft, "forward", failing(lab.draft.forward, 6, RuntimeError("gone")))
    configs = [replace(PLAIN, speculative=drafter) for drafter in ("draft", "off", "ngram", "draft")]
    runs = [request.result() for request in [lab.submit(PROMPT, config, sampling) for config in configs]]
    assert [run.token_ids for run in runs] == [plain] * 4
    assert [len(of(run, FellBack)) for run in runs] == [1, 0, 0, 1]


@pytest.mark.parametrize(
    ("kv_dtype", "layer", "way", "drafter"),
    [
        ("int8", Int8Layer, "raises", "off"),
        ("int4", Int4Layer, "garbage", "draft"),
        ("int8", Int8Layer, "garbage", "early_exit"),
        ("int4", Int4Layer, "raises", "synthetic"),
    ],
)
def test_failing_quantised_storage_falls_back_to_plain_storage(lab, monkeypatch, kv_dtype, layer, way, drafter):
    """Committed tokens stay; the rest is what plain storage gives. The pool it falls back to has run no step yet."""
    sampling = SamplingParams(max_tokens=30, ignore_eos=True)
    config = replace(PLAIN, speculative=drafter, adaptive_window=drafter == "synthetic")
    events, dequantise = [], layer.dequantise

    def broken(numbers, scale):
        if sum(len(event.token_ids) for event in events if event.kind == "committed") < 5:
            return dequantise(numbers, scale)
        if way == "raises":
            raise RuntimeError("a bad kernel")
        return dequantise(numbers, scale) * torch.nan

    monkeypatch.setattr(layer, "dequantise", staticmethod(broken))
    events.extend(lab.stream(PROMPT, replace(config, kv_dtype=kv_dtype), sampling))
    run = Run(events)
    assert run.reason == "length", run.finished
    assert "kv_format" in [event.part for event in of(run, FellBack)]
    at = next(i for i, event in enumerate(run.events) if isinstance(event, FellBack) and event.part == "kv_format")
    said = sum(len(e.token_ids) for e in run.events[:at] if e.kind == "committed")
    assert 0 < said < 30
    begun = [*run.prompt_token_ids, *run.token_ids[:said]]
    assert run.token_ids[said:] == tiny_models.continuation(lab, begun, 30 - said)
    assert lab.occupancy().live == 0


@pytest.mark.parametrize(
    ("blocks", "reason", "message"), [(32, "length", ""), (9, "error", "need 9 cache blocks of 4")]
)
def test_plain_storage_has_fewer_blocks_in_the_same_memory_and_the_text_has_to_fit(
    monkeypatch, blocks, reason, message
):
    config = replace(PLAIN, kv_dtype="int8", num_blocks=blocks)
    budget = tiny_models.engine("llama")._budget
    lab = tiny_models.engine("llama", kv_bytes=budget.cache_bytes(budget.cache_config(config)))
    with pytest.raises(ConfigError, match=f"num_blocks={blocks} does not fit"):
        lab.generate(PROMPT, replace(config, kv_dtype="auto"))
    monkeypatch.setattr(Int8Layer, "dequantise", staticmethod(failing(Int8Layer.dequantise, 3, RuntimeError("bad"))))
    run = lab.generate(PROMPT, config, SamplingParams(max_tokens=8, ignore_eos=True))
    assert [event.part for event in of(run, FellBack)] == ["kv_format"]
    assert run.reason == reason
    assert message in run.finished.message
    assert [event for event in run.events if isinstance(event, RunStarted)] == [run.started]


@pytest.mark.parametrize("drafter", ["off", "draft"])
def test_a_cache_given_up_is_freed_before_another_is_made(lab, monkeypatch, drafter):
    """Without waiting for the garbage collector: a GPU may not have room for both."""
    made, still_there, init, reads = [], [], KVStorage.__init__, iter(range(10**6))

    def making(self, kv_format, *rest, **how):
        still_there.append([form for form, storage in made if storage() and form != kv_format])
        made.append((kv_format, weakref.ref(self)))
        init(self, kv_format, *rest, **how)

    def broken(numbers, scale, dequantise=Int8Layer.dequantise):
        if next(reads) > 8:
            raise RuntimeError("bad")  # a new one, as its traceback holds what it went through
        return dequantise(numbers, scale)

    monkeypatch.setattr(KVStorage, "__init__", making)
    for module in (failures, pools):
        monkeypatch.setattr(module, "log", Mock())  # pytest keeps what is logged
    monkeypatch.setattr(Int8Layer, "dequantise", staticmethod(broken))
    config = replace(PLAIN, kv_dtype="int8", speculative=drafter)
    gc.disable()
    try:
        assert lab.generate(PROMPT, config, SamplingParams(max_tokens=8, ignore_eos=True)).reason == "length"
    finally:
        gc.enable()
    assert {form for form, _ in made} == {"int8", "auto"}
    assert not any(still_there)


@pytest.mark.parametrize("after", range(1, 24, 4))
def test_what_a_draft_stored_in_a_step_that_failed_is_not_found_by_others(lab, monkeypatch, after):
    cached = replace(PLAIN, speculative="draft", enable_prefix_caching=True)
    monkeypatch.setattr(lab.draft, "forward", failing(lab.draft.forward, after, None))
    run = lab.generate(PROMPT, cached, SamplingParams(max_tokens=20, ignore_eos=True))
    (event,) = of(run, FellBack)
    later = run.events[run.events.index(event) :]
    assert any(isinstance(event, BlockAllocated) for event in later)
    assert not any(isinstance(event, BlockStored) for event in later)


def test_a_run_with_non_finite_logits_leaves_nothing_in_the_prefix_cache(lab, monkeypatch):
    cached = replace(PLAIN, enable_prefix_caching=True)
    monkeypatch.setattr(lab.target, "forward", failing(lab.target.forward, 0, None))
    assert lab.generate(PROMPT, cached, SamplingParams(max_tokens=20)).reason == "error"
    assert lab.occupancy().cached == 0


@pytest.mark.parametrize("length", [1, 5, 12])
def test_a_broken_draft_that_is_right_by_chance_skips_no_token(length):
    """The argmax of NaN logits is token 0, which is also what the target says after its first token."""
    words = torch.full((3, tiny_models.VOCABULARY), -torch.inf)
    for last, following in ((0, 1), (1, 2), (2, 0)):
        words[last, following] = 1.0
    target, draft = ScriptedModel(words), ScriptedModel(words * torch.nan)
    lab, prompt = new_engine(target, tiny_models.tokenizer(), draft), tiny_models.tokenizer().decode([1])
    sampling = SamplingParams(max_tokens=length, ignore_eos=True)
    run = lab.generate(prompt, EngineConfig(speculative="draft", num_speculative_tokens=4), sampling)
    assert run.token_ids == [(place + 2) % 3 for place in range(length)]


def test_a_failing_commit_ends_only_the_request_concerned(lab, monkeypatch):
    """The token that could not be committed is not left in its text, and no other format is tried."""
    commit = pool.commit

    def failing_for_one(sequence, *rest):
        if sequence.prompt.text == "Snow" and sequence.generated == 3:
            raise RuntimeError("a text that cannot be")
        commit(sequence, *rest)

    config = replace(PLAIN, kv_dtype="int8")
    alone = lab.generate(PROMPT, config, SamplingParams(max_tokens=12, ignore_eos=True))
    monkeypatch.setattr(pool, "commit", failing_for_one)
    one, other = (lab.submit(text, config, SamplingParams(max_tokens=12, ignore_eos=True)) for text in ("Snow", PROMPT))
    one, other = one.result(), other.result()
    assert (one.reason, len(one.token_ids)) == ("error", 3)
    assert "a text that cannot be" in one.finished.message
    assert (other.reason, other.token_ids) == ("length", alone.token_ids)
    assert not of(one, FellBack)
    assert not of(other, FellBack)
    assert lab.occupancy().live == 0


@pytest.mark.parametrize("speculative", ["off", "draft"])
def test_a_panic_in_the_tokenizer_ends_only_the_request_concerned(speculative):
    """Whoever computes for everybody gets no error for it. With a draft it panics as the proposals are told."""
    ids = tiny_models.tokenizer()(f"ab{PANICS_AT}xy")["input_ids"]
    words = torch.full((max(ids) + 1, tiny_models.VOCABULARY), -torch.inf)
    a, b, panics, x, y = ids
    for last, following in ((a, b), (b, panics), (panics, a), (x, y), (y, x)):
        words[last, following] = 1.0
    lab = new_engine(ScriptedModel(words), tiny_models.panicking_tokenizer(), ScriptedModel(words))
    config = replace(PLAIN, speculative=speculative)
    one, other = (lab.submit(text, config, SamplingParams(max_tokens=8)) for text in "ax")
    other, one = other.result(), one.result()
    assert (other.reason, other.text) == ("length", "yxyxyxyx")
    assert (one.reason, one.text) == ("error", "b")  # the first token comes before any proposal
    assert one.finished.message.startswith("The model's tokenizer failed at this text. Change the prompt, or choose")
    assert lab.occupancy().live == 0
    for tokenizer in (tiny_models.panicking_tokenizer(encoding=on) for on in (True, False)):
        with pytest.raises(PromptError, match=r"tokenizer failed at this text.*PanicException: Onig"):
            new_engine(lab.target, tokenizer).generate(f"a{PANICS_AT}", PLAIN)
    assert lab.generate("x", PLAIN, SamplingParams(max_tokens=2)).text == "yx"


def test_a_request_that_got_its_last_token_in_a_failed_step_is_finished(lab, monkeypatch):
    """The others go on in another format."""
    read, steps = pool.StepTimer.read, []

    def failing_once(clock):
        steps.append(clock)
        if len(steps) == 3:
            raise RuntimeError("nobody knows")
        return read(clock)

    monkeypatch.setattr(pool.StepTimer, "read", failing_once)
    config = replace(PLAIN, kv_dtype="int8")
    short, long = (lab.submit(PROMPT, config, SamplingParams(max_tokens=n, ignore_eos=True)) for n in (3, 12))
    short, long = short.result(), long.result()
    assert (short.reason, len(short.token_ids), of(short, FellBack)) == ("length", 3, [])
    assert (long.reason, len(long.token_ids)) == ("length", 12)
    assert [event.part for event in of(long, FellBack)] == ["kv_format"]
