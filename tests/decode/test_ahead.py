"""Steps launched before the host has read the last one's tokens: the same tokens, and nothing is left behind."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton", reason="the package triton is not installed (requirements-test.txt)")

from lab import EngineConfig, SamplingParams, load_engine
from lab.decode import ahead, pool
from lab.trace.events import Admitted, Committed, FellBack, StepTimed
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
    launch, logits_of = pool.launch_ahead, ahead.Ahead.logits_of
    launched, used = [], []

    def watched(*args):
        made = launch(*args)
        if made:
            launched.append(len(made.lengths))
        return made

    def watched_use(self, turns):
        logits = logits_of(self, turns)
        used.append(0 if logits is None else len(turns))
        return logits

    monkeypatch.setattr(pool, "launch_ahead", watched)
    monkeypatch.setattr(ahead.Ahead, "logits_of", watched_use)
    return launched, used


@pytest.fixture(scope="module")
def reference():
    return tiny_models.engine("llama", "good", shape=SMALL, kernels="reference")


@without_gpu
@pytest.mark.parametrize("sampling", [GREEDY, DRAWN], ids=["greedy", "drawn"])
@pytest.mark.parametrize(("config", "ahead_of"), [(CONTIGUOUS, 5), (PAGED, 4)], ids=["contiguous", "paged"])
def test_tokens_are_those_of_the_reference(monkeypatch, reference, launches, config, ahead_of, sampling):
    """The first decode captures; the last token is known to be the last. Paged: the one that needs a new block waits
    for it."""
    run = captured_engine(monkeypatch).generate("Once", config, sampling)
    assert run.token_ids == reference.generate("Once", config, sampling).token_ids
    launched, used = launches
    assert used == launched == [1] * ahead_of
    assert [event.step_kind for event in run.events if isinstance(event, StepTimed)] == ["prefill"] + 6 * ["decode"]


@without_gpu
def test_an_engine_without_it_launches_nothing_ahead(monkeypatch, reference, launches):
    run = captured_engine(monkeypatch, async_scheduling=False).generate("Once", CONTIGUOUS, GREEDY)
    assert run.token_ids == reference.generate("Once", CONTIGUOUS, GREEDY).token_ids
    assert launches == ([], [])


@without_gpu
@pytest.mark.parametrize("speculative", ["draft", "ngram"])
def test_nothing_is_launched_ahead_of_guesses(monkeypatch, reference, launches, speculative):
    config = replace(CONTIGUOUS, speculative=speculative, num_speculative_tokens=2)
    run = captured_engine(monkeypatch).generate("a b a b a", config, GREEDY)
    assert run.token_ids == reference.generate("a b a b a", config, GREEDY).token_ids
    assert launches == ([], [])


@without_gpu
def test_sequences_that_end_leave_the_others_their_rows(monkeypatch, reference, launches):
    """One by its length, which is known before, one at a stop string, one cancelled. Then nothing is left."""
    lab = captured_engine(monkeypatch)
    texts = [reference.generate(text, CONTIGUOUS, replace(GREEDY, max_tokens=12)) for text in TEXTS]
    stop = "".join(texts[1].text)[:4][-1:]
    stopping = replace(GREEDY, max_tokens=12, stop=(stop,))
    alone = reference.generate(TEXTS[1], CONTIGUOUS, stopping)
    assert 1 < len(alone.token_ids) < 12
    requests = [
        lab.submit(TEXTS[0], CONTIGUOUS, replace(GREEDY, max_tokens=12)),
        lab.submit(TEXTS[1], CONTIGUOUS, stopping),
        lab.submit(TEXTS[2], CONTIGUOUS, replace(GREEDY, max_tokens=12)),
    ]
    for _ in range(8):
        lab.step()
    requests[2].cancel()
    runs = [request.result() for request in requests]
    assert [run.reason for run in runs] == ["length", alone.reason, "cancelled"]
    assert runs[0].token_ids == texts[0].token_ids
    assert runs[1].token_ids == alone.token_ids
    assert runs[2].token_ids == texts[2].token_ids[: len(runs[2].token_ids)]
    launched, used = launches
    assert 3 in launched
    assert 0 not in used
    assert any(fewer < given for given, fewer in zip(launched, used, strict=False))
    assert lab.occupancy().live == 0
    (left,) = lab._pools
    assert left._ahead is None


@without_gpu
def test_a_newcomer_joins_a_step_later_and_changes_nothing(monkeypatch, reference, launches):
    lab, sampling = captured_engine(monkeypatch), replace(GREEDY, max_tokens=12)
    first = lab.submit(TEXTS[0], CONTIGUOUS, sampling)
    for _ in range(4):
        lab.step()
    assert launches[0]
    second = lab.submit(TEXTS[1], CONTIGUOUS, sampling)
    lab.step()
    assert not [event for event in second._sequence.recorder._pending if isinstance(event, Admitted)]
    for request, text in ((first, TEXTS[0]), (second, TEXTS[1])):
        assert request.result().token_ids == reference.generate(text, CONTIGUOUS, sampling).token_ids
    assert 0 not in launches[1]


@without_gpu
def test_a_pass_that_cannot_be_launched_ahead_is_launched_in_its_turn(monkeypatch, reference, launches):
    """A failing replay is told by the step that runs without graphs."""
    lab = captured_engine(monkeypatch)
    calls, forward = [], ahead.forward

    def failing(*args):
        calls.append(args)
        if len(calls) == 2:
            raise torch.OutOfMemoryError("no")
        return forward(*args)

    monkeypatch.setattr(ahead, "forward", failing)
    run = lab.generate("Once", CONTIGUOUS, GREEDY)
    assert run.token_ids == reference.generate("Once", CONTIGUOUS, GREEDY).token_ids
    assert not [event for event in run.events if isinstance(event, FellBack)]
    assert len(calls) > len(launches[0]) > 1


@without_gpu
def test_a_step_out_of_memory_after_a_launch_is_computed_again(monkeypatch, reference):
    """What was launched for tokens that the step did not get to commit is not used."""
    lab = captured_engine(monkeypatch)
    sampling = replace(GREEDY, max_tokens=10)
    judge, judged = pool.judge, []

    def short():
        raise torch.OutOfMemoryError("no")

    def short_once(logits, rounds, **how):
        judged.append(judge(logits, rounds, **how))
        return judged[-1]._replace(outcomes=short) if len(judged) == 5 else judged[-1]

    monkeypatch.setattr(pool, "judge", short_once)
    requests = [lab.submit(text, CONTIGUOUS, sampling) for text in TEXTS[:2]]
    runs = [request.result() for request in requests]
    assert [run.reason for run in runs] == ["length"] * 2
    for run, text in zip(runs, TEXTS, strict=False):
        assert run.token_ids == reference.generate(text, CONTIGUOUS, sampling).token_ids


def test_a_step_takes_the_time_since_the_last_one(monkeypatch):
    """Steps follow each other without a gap: what the host does between them is in their times, once."""
    lab = captured_engine(monkeypatch) if not torch.cuda.is_available() else load_engine(device="cuda")
    run = lab.generate("Once", CONTIGUOUS, replace(GREEDY, max_tokens=24))
    steps = [event for event in run.events if isinstance(event, StepTimed)][2:]
    told = [event for event in run.events if isinstance(event, Committed)][2:]
    between = told[-1].t_ms - told[0].t_ms
    assert sum(step.total_ms for step in steps[1:]) == pytest.approx(between, rel=0.25)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device: nothing to launch ahead on")
@pytest.mark.parametrize("sampling", [GREEDY, DRAWN], ids=["greedy", "drawn"])
def test_the_embedded_pair_gives_the_same_tokens_ahead(launches, sampling):
    """Sixteen at once, ending one after another, against each launched in its turn."""
    lab = load_engine(device="cuda", dtype="float32")
    other = type(lab)(lab.target, lab.tokenizer, lab.draft, async_scheduling=False)
    jobs = [(f"Once upon a time there were {n}", replace(sampling, max_tokens=40 + 5 * n, seed=n)) for n in range(16)]
    texts = []
    for engine in (lab, other):
        requests = [engine.submit(text, PAGED, each) for text, each in jobs]
        texts.append([request.result().token_ids for request in requests])
    assert texts[0] == texts[1]
    assert len(launches[0]) > 30
    assert 0 not in launches[1]
