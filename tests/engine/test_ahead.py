"""Steps launched before the host has read the last one's tokens: the same tokens, and nothing is left behind."""

from __future__ import annotations

import time
from dataclasses import replace
from time import perf_counter

import pytest
import torch

pytest.importorskip("triton", reason="the package triton is not installed (requirements-test.txt)")

from lab import EngineConfig, SamplingParams, load_engine
from lab.backends.gpu.gpu_backend import GpuBackend
from lab.engine import drafters
from lab.engine.adaptive_window import AdaptiveWindow
from lab.engine.async_scheduling import PassAhead
from lab.trace.events import StepTimed
from tests import tiny_models
from tests.captured import SMALL, captured_engine

pytestmark = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # numpy's, about the NaN of padding
    pytest.mark.usefixtures("poisoned_outputs"),
]
without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA captures here: see the tests marked gpu")
PAGED, CONTIGUOUS = EngineConfig(paged=True, block_size=4), EngineConfig(block_size=4)
GREEDY = SamplingParams(max_tokens=7, ignore_eos=True)
DRAWN = replace(GREEDY, temperature=0.9, top_p=0.8, seed=3)
TEXTS = ["Once", "a b a b a", "The snow"]


@pytest.fixture
def launches(monkeypatch):
    """The number of sequences of every pass that is launched ahead, and afterwards of every one that is used."""
    launch, logits_of = GpuBackend.launch_ahead, PassAhead.logits_of
    launched, used = [], []

    def watched(backend, batch, storage):
        made = launch(backend, batch, storage)
        if made:
            launched.append(len(batch))
        return made

    def watched_use(self, turns):
        logits = logits_of(self, turns)
        used.append(0 if logits is None else len(turns))
        return logits

    monkeypatch.setattr(GpuBackend, "launch_ahead", watched)
    monkeypatch.setattr(PassAhead, "logits_of", watched_use)
    return launched, used


@pytest.fixture(scope="module")
def reference():
    return tiny_models.engine("llama", "good", shape=SMALL, kernels="reference")


@pytest.mark.slow
@without_gpu
@pytest.mark.parametrize("sampling", [GREEDY, DRAWN], ids=["greedy", "drawn"])
@pytest.mark.parametrize(("config", "ahead_of"), [(CONTIGUOUS, 5), (PAGED, 4)], ids=["contiguous", "paged"])
def test_tokens_are_those_of_the_reference(monkeypatch, reference, launches, config, ahead_of, sampling):
    """The first decode captures; the last token is known to be the last. Paged: the one that needs a new block waits
    for it."""
    run = captured_engine(monkeypatch, interpreted=True).generate("Once", config, sampling)
    assert run.token_ids == reference.generate("Once", config, sampling).token_ids
    launched, used = launches
    assert used == launched == [1] * ahead_of
    assert [event.step_kind for event in run.events if isinstance(event, StepTimed)] == ["prefill"] + 6 * ["decode"]


@without_gpu
@pytest.mark.parametrize(("speculative", "adaptive"), [("draft", False), ("ngram", False), ("draft", True)])
def test_nothing_is_launched_ahead_of_draft_tokens(monkeypatch, reference, launches, speculative, adaptive):
    """Nor where an adaptive window is closed: the next round may open it."""
    config = replace(CONTIGUOUS, speculative=speculative, num_speculative_tokens=2, adaptive_window=adaptive)
    expected = reference.generate("a b a b a", config, GREEDY).token_ids
    if adaptive:
        monkeypatch.setattr(AdaptiveWindow, "__post_init__", lambda window: setattr(window, "gamma", 0))
        monkeypatch.setattr(AdaptiveWindow, "observe", lambda *_, **__: False)
    run = captured_engine(monkeypatch).generate("a b a b a", config, GREEDY)
    assert run.token_ids == expected
    assert launches == ([], [])


@without_gpu
@pytest.mark.parametrize("first", [0, 1, 2])
def test_sequences_that_end_leave_the_others_their_rows(monkeypatch, reference, launches, first):
    """One at a stop string, which is known only afterwards; one is cancelled; one reaches its length."""
    lab, long = captured_engine(monkeypatch), replace(GREEDY, max_tokens=14)
    order = [*TEXTS[first:], *TEXTS[:first]]
    alone = {text: reference.generate(text, CONTIGUOUS, long) for text in TEXTS}
    stopping = replace(long, stop=(alone[TEXTS[0]].text[3:5],))
    stopped = reference.generate(TEXTS[0], CONTIGUOUS, stopping)
    assert 2 < len(stopped.token_ids) < 8
    requests = {text: lab.submit(text, CONTIGUOUS, stopping if text == TEXTS[0] else long) for text in order}
    for _ in range(10):
        lab.step()
    requests[TEXTS[1]].cancel()
    runs = {text: request.result() for text, request in requests.items()}
    assert [runs[text].reason for text in TEXTS] == ["stop", "cancelled", "length"]
    assert runs[TEXTS[0]].token_ids == stopped.token_ids
    assert runs[TEXTS[1]].token_ids == alone[TEXTS[1]].token_ids[: len(runs[TEXTS[1]].token_ids)]
    assert runs[TEXTS[2]].token_ids == alone[TEXTS[2]].token_ids
    launched, used = launches
    assert 3 in launched
    assert 0 not in used
    assert any(fewer < given for given, fewer in zip(launched, used, strict=False))
    assert lab.occupancy().live == 0


@without_gpu
@pytest.mark.parametrize("at", [0, 2, 3])
def test_a_drafter_that_is_given_up_leaves_no_token_in_a_block_that_is_given_back(monkeypatch, reference, launches, at):
    """Its window had reserved a block beyond the tokens there are. Another block takes its place, since a lower one has
    become free."""
    lab, sampling, failed = captured_engine(monkeypatch), replace(GREEDY, max_tokens=24), []
    for batch in (TEXTS[:2], TEXTS[:1]):  # captures what is needed
        for request in [lab.submit(text, PAGED, replace(GREEDY, max_tokens=4)) for text in batch]:
            request.result()

    def propose(self, sequences, windows):
        if len(sequences[0].tokens) % 4 == at and sequences[0].generated > 2:
            failed.append(True)
            raise RuntimeError("no")
        return [None] * len(sequences)

    monkeypatch.setattr(drafters.PromptLookup, "propose", propose)
    config = replace(PAGED, speculative="ngram", num_speculative_tokens=4)
    first, second = lab.submit(TEXTS[0], PAGED, sampling), lab.submit(TEXTS[1], config, sampling)
    while not failed:
        lab.step()
    first.cancel()
    assert second.result().token_ids == reference.generate(TEXTS[1], PAGED, sampling).token_ids
    assert launches[0]


@without_gpu
@pytest.mark.parametrize("how", ["cancelled", "failed", "not finite"])
def test_nothing_is_left_of_a_request_that_ends_otherwise(monkeypatch, launches, how):
    lab, verify = captured_engine(monkeypatch), GpuBackend.verify

    def broken(backend, logits, rounds):
        pending = verify(backend, logits, rounds)
        if len(launches[0]) < 2 or how == "cancelled":
            return pending
        if how == "failed":
            return pending._replace(results=lambda: 1 / 0)
        return pending._replace(results=lambda: [replace(one, finite=False) for one in pending.results()])

    monkeypatch.setattr(GpuBackend, "verify", broken)
    request = lab.submit("Once", CONTIGUOUS, replace(GREEDY, max_tokens=24))
    while not request.finished:
        lab.step()
        if how == "cancelled" and launches[0]:
            request.cancel()
    (left,) = lab._cores
    assert launches[0]
    assert left._async.ahead is None


@without_gpu
def test_a_newcomer_joins_a_step_later_and_changes_nothing(monkeypatch, reference, launches):
    lab, sampling = captured_engine(monkeypatch), replace(GREEDY, max_tokens=12)
    first = lab.submit(TEXTS[0], CONTIGUOUS, sampling)
    for _ in range(4):
        lab.step()
    assert launches[0]
    second = lab.submit(TEXTS[1], CONTIGUOUS, sampling)
    lab.step()
    assert not second._sequence.table
    lab.step()
    assert second._sequence.table
    for request, text in ((first, TEXTS[0]), (second, TEXTS[1])):
        assert request.result().token_ids == reference.generate(text, CONTIGUOUS, sampling).token_ids
    assert 0 not in launches[1]


@without_gpu
def test_a_step_out_of_memory_after_a_launch_is_computed_again(monkeypatch, reference):
    """What was launched for tokens that the step did not get to commit is not used."""
    lab = captured_engine(monkeypatch)
    sampling = replace(GREEDY, max_tokens=10)
    verify, verified = GpuBackend.verify, []

    def short():
        raise torch.OutOfMemoryError("no")

    def short_once(*args):
        verified.append(verify(*args))
        return verified[-1]._replace(results=short) if len(verified) == 5 else verified[-1]

    monkeypatch.setattr(GpuBackend, "verify", short_once)
    requests = [lab.submit(text, CONTIGUOUS, sampling) for text in TEXTS[:2]]
    runs = [request.result() for request in requests]
    assert [run.reason for run in runs] == ["length"] * 2
    for run, text in zip(runs, TEXTS, strict=False):
        assert run.token_ids == reference.generate(text, CONTIGUOUS, sampling).token_ids


@without_gpu
def test_the_rest_of_a_step_is_in_the_time_of_the_next_if_that_was_launched_before(monkeypatch, launches):
    later = 0

    def watch(owner, at, event):
        """Takes a quarter of an hour after a step, by a clock that is put forward: no machine is as slow by itself."""
        nonlocal later
        later += 900 * isinstance(event, StepTimed)

    monkeypatch.setattr(time, "perf_counter", lambda: perf_counter() + later)
    lab = captured_engine(monkeypatch, on_event=watch)
    run = lab.generate("Once", CONTIGUOUS, GREEDY)
    steps = [event for event in run.events if isinstance(event, StepTimed)]
    behind = [step.total_ms > 900_000 for step in steps]
    assert behind == [False] * (len(steps) - len(launches[1])) + [True] * len(launches[1])
    assert all(step.verify_ms > 0.2 for step in steps)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device: nothing to launch ahead on")
@pytest.mark.parametrize("sampling", [GREEDY, DRAWN], ids=["greedy", "drawn"])
def test_the_embedded_pair_gives_the_same_tokens_ahead(launches, sampling):
    """Sixteen at once, ending one after another, against each launched in its turn."""
    lab = load_engine(device="cuda", dtype="float32")
    other = load_engine(device="cuda", dtype="float32", async_scheduling=False)
    jobs = [(f"Once upon a time there were {n}", replace(sampling, max_tokens=40 + 5 * n, seed=n)) for n in range(16)]
    texts = []
    for engine in (lab, other):
        requests = [engine.submit(text, PAGED, each) for text, each in jobs]
        texts.append([request.result().token_ids for request in requests])
    assert texts[0] == texts[1]
    assert len(launches[0]) > 30
    assert 0 not in launches[1]
