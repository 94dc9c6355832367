"""Real (tiny) models in a batch: the same tokens as alone, whoever drives the engine, within one memory budget."""

from __future__ import annotations

import gc
import threading
import weakref
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from lab import ConfigError, EngineConfig, SamplingParams
from lab.engine.step_limits import batched_tokens
from lab.trace.events import Finished, Prefilled, StepTimed
from tests import tiny_models
from tests.tiny_models import of

PROMPTS = [
    "There was once a fisherman",
    "The king",
    "A very long way from here, where the swallows fly when we have winter, there lived a king",
    "There was once a fisherman and his wife",
    "Snow",
    "There was once a fisherman",
]
CONFIGS = {
    "contiguous": EngineConfig(),
    "paged": EngineConfig(paged=True, block_size=4),
    "cached": EngineConfig(paged=True, block_size=4, enable_prefix_caching=True),
    "int8": EngineConfig(paged=True, kv_dtype="int8"),
    "no cache": EngineConfig(kv_cache=False),
}
DRAFTERS = ("off", "draft", "ngram", "early_exit", "synthetic")


# Llama with every cache, every other architecture with one.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "name"),
    [*(("llama", name) for name in CONFIGS), ("qwen2", "contiguous"), ("qwen3", "no cache"), ("gpt2", "int8")],
)
def test_tokens_are_the_same_alone_and_in_a_batch(architecture, name):
    """Greedy, float32: every drafter, various lengths and windows, requests joining and leaving in mid-run."""
    shape = {"num_hidden_layers": 3}  # for exits at different ones
    lab = tiny_models.engine(architecture, "good", shape=shape, max_num_seqs=4, max_num_batched_tokens=48)
    asked = []
    for i, prompt in enumerate(PROMPTS):
        config = replace(
            CONFIGS[name],
            speculative=DRAFTERS[i % len(DRAFTERS)],
            num_speculative_tokens=1 + i,
            early_exit_layer=1 + i % 2,
        )
        asked.append((prompt, config, SamplingParams(max_tokens=8 + 3 * i, ignore_eos=True)))
    plain = replace(CONFIGS[name], enable_prefix_caching=False)
    alone = [lab.generate(prompt, plain, sampling).token_ids for prompt, _, sampling in asked]
    requests = []
    for prompt, config, sampling in asked:
        requests.append(lab.submit(prompt, config, sampling))
        lab.step()
    runs = [request.result() for request in requests]
    assert [run.token_ids for run in runs] == alone
    assert max(step.batch_sequences for run in runs for step in of(run, StepTimed)) >= 2
    assert lab.occupancy().live == 0


def test_many_threads_drive_the_engine_for_each_other():
    lab = tiny_models.engine("llama", "good")
    config = replace(CONFIGS["cached"], speculative="draft")
    samplings = [SamplingParams(max_tokens=20, temperature=1.0, seed=seed) for seed in range(8)]
    alone = [lab.generate(PROMPTS[i % 6], config, sampling).token_ids for i, sampling in enumerate(samplings)]
    results: dict[int, list[int]] = {}

    def ask(i: int) -> None:
        results[i] = lab.generate(PROMPTS[i % 6], config, samplings[i]).token_ids

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(samplings))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert [results[i] for i in range(len(samplings))] == alone
    gone = lab.submit(PROMPTS[0], config, SamplingParams(max_tokens=250, ignore_eos=True))
    events = iter(gone)
    next(events)
    events.close()  # its reader is gone
    after = lab.generate(PROMPTS[1], config, samplings[1])
    assert after.reason == "length"
    assert lab.occupancy().live == 0
    assert lab.generate(PROMPTS[0], config, samplings[0]).token_ids == alone[0]


def test_a_reader_with_the_last_event_is_done_before_the_step_is_over(monkeypatch):
    """A reader that is quicker than the driving thread has seen the end and asks for more: there is none."""
    raised, waits = [], threading.Event()

    def read() -> None:
        try:
            events.extend(first)
        except RuntimeError as error:
            raised.append(error)

    def at_the_end(owner, seconds, event):
        if owner == 0 and isinstance(event, Finished):
            reader.start()
            assert waits.wait(30)

    lab, events = tiny_models.engine("llama", on_event=at_the_end), []
    reader = threading.Thread(target=read, daemon=True)
    advance = lab.advance

    def noticed(sequence):
        if threading.current_thread() is reader:
            waits.set()
        advance(sequence)

    monkeypatch.setattr(lab, "advance", noticed)
    first, second = (lab.submit("A fox", None, SamplingParams(max_tokens=1)) for _ in range(2))
    assert second.result().reason == "length"
    reader.join(30)
    assert not reader.is_alive()
    assert raised == []
    assert isinstance(events[-1], Finished)


# -- pools and memory ------------------------------------------------------------------------------


def test_pools_stay_within_the_memory_budget_and_wait_for_it():
    lab = tiny_models.engine("llama", "good")
    configs = [EngineConfig(paged=True, block_size=size, num_blocks=64 // size) for size in (1, 2, 4, 8)]
    room = 2 * lab._budget.cache_bytes(lab._budget.cache_config(configs[0]))
    lab = tiny_models.engine("llama", "good", kv_bytes=room)
    sampling = SamplingParams(max_tokens=20, ignore_eos=True)
    alone = lab.generate(PROMPTS[0], EngineConfig(), sampling).token_ids
    requests = [lab.submit(PROMPTS[0], config, sampling) for config in configs]
    most = 0
    while lab.step():
        most = max(most, lab._cores.bytes_in_use())
        assert most <= room
    assert most == room
    assert [request.result().token_ids for request in requests] == [alone] * len(configs)


def test_a_request_waiting_for_memory_is_not_starved():
    """Others keep arriving for a pool that exists; the pool it needs has room only once that one is idle."""
    lab = tiny_models.engine("llama", "good")
    there, wanted = (EngineConfig(paged=True, block_size=size, num_blocks=64 // size) for size in (4, 8))
    lab = tiny_models.engine("llama", "good", kv_bytes=lab._budget.cache_bytes(lab._budget.cache_config(there)))
    sampling = SamplingParams(max_tokens=8, ignore_eos=True)
    before = [lab.submit(PROMPTS[0], there, sampling) for _ in range(2)]
    lab.step()
    waits = lab.submit(PROMPTS[1], wanted, sampling)
    after = []
    for _ in range(60):
        if waits.finished:
            break
        after.append(lab.submit(PROMPTS[0], there, sampling))
        lab.step()
        if not all(request.finished for request in before):
            held_up = [lab.place_in_queue(request._sequence.prompt.cancelled) for request in (waits, *after)]
            assert held_up == [*range(len(held_up))]
    assert held_up
    assert waits.finished
    assert all(request.finished for request in before)
    assert not any(request.finished for request in after)
    assert all(request.result().finished.reason == "length" for request in (*before, waits, *after))


def test_an_idle_pool_keeps_its_cache_until_the_memory_is_needed():
    lab = tiny_models.engine("llama", "good")
    cached = replace(CONFIGS["cached"], num_blocks=32)
    room = 2 * lab._budget.cache_bytes(lab._budget.cache_config(cached))
    lab = tiny_models.engine("llama", "good", kv_bytes=room)

    def found() -> int:
        return of(lab.generate(PROMPTS[0], cached, SamplingParams(max_tokens=2)), Prefilled)[0].cached_tokens

    assert [found(), found()] == [0, 24]
    lab.generate(PROMPTS[1], replace(cached, enable_prefix_caching=False), SamplingParams(max_tokens=2))
    assert found() == 24
    lab.generate(PROMPTS[1], replace(cached, enable_prefix_caching=False, num_blocks=64), SamplingParams(max_tokens=2))
    assert found() == 0


def test_requests_with_a_draft_find_only_blocks_that_hold_its_keys_and_values(monkeypatch):
    lab = tiny_models.engine("llama", "good")

    def found(drafter: str, tokens: int = 6) -> int:
        config = replace(CONFIGS["cached"], speculative=drafter)
        return of(lab.generate(PROMPTS[0], config, SamplingParams(max_tokens=tokens)), Prefilled)[0].cached_tokens

    assert found("off") == 0
    with monkeypatch.context() as broken:
        broken.setattr(lab.draft, "forward", lambda *_: 1 / 0)
        assert found("draft") == 0
    assert found("draft", 2) == 0  # with no room for draft tokens, the draft reads nothing
    assert [found(drafter) for drafter in ("draft", "draft", "ngram", "off")] == [0, 24, 24, 24]


@pytest.mark.parametrize(
    "limit",
    [
        {"max_num_seqs": 0},
        {"max_num_seqs": "4"},
        {"max_num_batched_tokens": 0},
        {"max_num_batched_tokens": 32},
        {"kv_bytes": 0},
        {"kv_bytes": 1e9},
    ],
)
def test_invalid_limits_are_refused(limit):
    (name,) = limit
    with pytest.raises(ConfigError, match=name):
        tiny_models.engine("llama", **limit)


@pytest.mark.parametrize(("gigabytes", "tokens"), [(11.6, 2048), (23.6, 2048), (39.4, 8192), (79.1, 8192)])
def test_a_small_gpu_computes_fewer_tokens_in_a_step(monkeypatch, gigabytes, tokens):
    """A100s of "40 GB" have 39.4 GiB, which are 42.3 GB."""
    whole = SimpleNamespace(total_memory=int(gigabytes * 2**30))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: whole)
    assert batched_tokens(SimpleNamespace(device=torch.device("cuda"))) == tokens


def test_a_failing_watcher_ends_no_run(caplog):
    """Its error is logged."""

    def fails(owner, seconds, event):
        raise OSError("the disk is full")

    sampling = SamplingParams(max_tokens=4)
    watched = tiny_models.engine("llama", on_event=fails).generate("A", EngineConfig(), sampling)
    assert watched.token_ids == tiny_models.engine("llama").generate("A", EngineConfig(), sampling).token_ids
    assert "the disk is full" in caplog.text


def test_a_request_that_cannot_even_be_scheduled_ends_with_an_error(monkeypatch):
    """Whatever goes wrong, the engine does not spin."""
    lab = tiny_models.engine("llama")
    monkeypatch.setattr("lab.engine.scheduler.Scheduler._fits", lambda *_: 1 / 0)
    run = lab.generate(PROMPTS[0], CONFIGS["paged"])
    assert run.reason == "error"
    assert "ZeroDivisionError" in run.finished.message
    assert not lab.step()


@pytest.mark.parametrize("speculative", ["off", "draft"])
def test_an_unused_pool_frees_its_memory_at_once(speculative):
    """Although its request is kept: without waiting for the garbage collector a GPU may have no room for the next."""
    lab = tiny_models.engine("llama", "good")
    config = replace(CONFIGS["paged"], speculative=speculative)
    request = lab.submit("The king", config, SamplingParams(max_tokens=4))
    request.result()
    (pool,) = lab._cores
    cache, pool = weakref.ref(pool.cache), None
    gc.collect()
    gc.disable()
    lab.generate("The king", replace(config, block_size=8), SamplingParams(max_tokens=4))
    gc.enable()
    assert cache() is None
    assert request.finished


def test_a_failure_while_the_engine_is_released_blocks_no_other_thread(monkeypatch):
    lab = tiny_models.engine("llama")
    first = lab.submit("A fox", sampling=SamplingParams(max_tokens=4))
    second = lab.submit("A fox", sampling=SamplingParams(max_tokens=4))
    step = lab._step

    def abandoned_meanwhile():
        lab.abandon(second._sequence)
        monkeypatch.setattr(lab._lock, "_reap_cancelled", fails_while_another_leaves)
        return True

    def fails_while_another_leaves():
        lab.abandon(second._sequence)
        raise ZeroDivisionError

    monkeypatch.setattr(lab, "_step", abandoned_meanwhile)
    first._sequence.recorder._pending.clear()
    with pytest.raises(ZeroDivisionError):
        lab.advance(first._sequence)
    monkeypatch.undo()
    assert lab._step == step
    served = []
    somebody = threading.Thread(
        target=lambda: served.append(lab.generate("A fox", None, SamplingParams(max_tokens=4))), daemon=True
    )
    somebody.start()
    somebody.join(30)
    assert [run.reason for run in served] == ["length"]


def test_a_synthetic_run_in_preparation_counts_and_can_be_cancelled():
    others = []

    def ends_the_others(owner, seconds, event):
        if isinstance(event, Finished):
            for other in others:
                other.cancel()

    lab = tiny_models.engine("llama", on_event=ends_the_others)
    one = lab.submit("A fox", EngineConfig(paged=True), SamplingParams(max_tokens=20))
    other = lab.submit("A fox", EngineConfig(paged=True, speculative="synthetic"), SamplingParams(max_tokens=50))
    assert lab.counts() == (0, 2)
    others.append(other)
    lab.step()
    assert lab.counts() == (2, 0), "a synthetic run and its preparation have to count as one"
    one.cancel()
    assert (one.result().reason, other.result().reason) == ("cancelled", "cancelled")


def test_swapped_settings_are_refused():
    lab = tiny_models.engine("llama")
    for wrong in ((SamplingParams(),), (None, EngineConfig()), ({"paged": True},)):
        with pytest.raises(ConfigError, match="an EngineConfig and a SamplingParams, not"):
            lab.generate("A", *wrong)
