"""Captured steps: padded to a bucket they give the same results, and a capture or replay that fails is recovered from.

Without a GPU a replay calls the captured function again, on the same tensors: everything is tested but CUDA.
"""

from __future__ import annotations

import gc
import weakref
from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from unittest.mock import Mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

pytest.importorskip("triton", reason="the package triton is not installed (requirements-test.txt)")

from lab import Engine, SamplingParams
from lab.backends.gpu import cuda_graphs as graphs
from lab.backends.gpu import fused_product as product
from lab.backends.gpu.batch_inputs import Layout
from lab.backends.gpu.cuda_graphs import MOST_ROWS, Bucket
from lab.measure import throughput
from lab.measure.comparison import compare
from lab.measure.workload import exactly
from lab.trace.events import StepTimed
from lab.util.device_memory import CAPTURING
from tests import tiny_models
from tests.captured import DRAFT, EARLY_EXIT, PAGED, SAMPLING, SMALL, Again, captured_engine, fell_back

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, about the NaN of padding
without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA captures here: see the tests marked gpu")
PROMPT = "Once"
SECOND = "llama, 1 x 4 tokens, context 512"  # what a run with ``DRAFT`` captures after its first step


@pytest.fixture
def engine(monkeypatch):
    """Makes an engine whose steps are captured."""
    return partial(captured_engine, monkeypatch)


@pytest.fixture(scope="module")
def reference():
    return tiny_models.engine("llama", "good", shape=SMALL, kernels="reference")


# -- shapes ----------------------------------------------------------------------------------


@given(sequences=st.integers(1, 80), new=st.integers(1, 40), longest=st.integers(1, 200_000))
def test_a_bucket_holds_its_step_and_wastes_little(sequences, new, longest):
    bucket = Bucket.of(sequences, new, longest)
    if bucket is None:
        assert new > 33 or 2 * sequences * (new + 8) > MOST_ROWS
        return
    assert sequences <= bucket.sequences < 2 * sequences
    assert new <= bucket.new <= new + 8
    assert longest <= bucket.context <= max(512, 2 * longest)
    assert bucket.rows <= MOST_ROWS
    assert Bucket.of(*bucket) == bucket
    # A step for the fused product is padded to one for it: otherwise it would be rounded differently.
    assert sequences > 1 or new > product.MOST_ROWS or bucket.rows <= product.MOST_ROWS


def test_a_step_is_packed_and_padded():
    """Two sequences of a token and of two, with blocks of four slots, one table longer than the step needs."""
    step = ((1, 2), (4, 7), (1, 1), (array("i", [3, 1]), array("i", [2, 7, 5, 9])))

    def packed(layout: Layout, *step: Sequence) -> list[list]:
        joined = layout.pack(*step, 4, torch.device("cpu"))
        assert (joined.dtype, joined.numel()) == (torch.int32, sum(layout.sizes))
        return [part.tolist() for part in layout.split(joined)]

    exact = packed(Layout(rows=3, kept=2, sequences=2, height=3), *step)
    assert exact == [[4, 7, 8], [4, 31, 20], [0, 2], [0, 1, 3], [5, 9], [[3, 1, 0], [2, 7, 5]]]
    assert packed(Layout(rows=6, kept=6, sequences=3, height=4), *step) == [
        [4, 7, 8, 0, 0, 0],
        [4, 31, 20, -1, -1, -1],
        [0, 2, 0, 0, 0, 0],
        [0, 1, 3, 3],
        [5, 9, 0],
        [[3, 1, 0, 0], [2, 7, 5, 9], [0, 0, 0, 0]],
    ]
    nothing = packed(Layout(rows=2, kept=2, sequences=1, height=2), (), (), (), ())
    assert nothing == [[0, 0], [-1, -1], [0, 0], [0, 0], [0], [[0, 0]]]


# -- in the engine ---------------------------------------------------------------------------


@pytest.mark.slow
@without_gpu
@pytest.mark.parametrize("config", [DRAFT, EARLY_EXIT], ids=["a draft, int8", "an early exit"])
def test_captured_steps_give_the_tokens_of_the_reference(engine, reference, poisoned_outputs, config):
    lab = engine(interpreted=config is DRAFT)  # once on the kernels, which are slow
    run = lab.generate(PROMPT, config, SAMPLING)
    assert run.token_ids == reference.generate(PROMPT, config, SAMPLING).token_ids
    assert fell_back(run) == []
    assert (run.started.cuda_graphs, reference.generate(PROMPT, config, SAMPLING).started.cuda_graphs) == (True, False)
    (place,) = Again.made
    later = [event for event in run.events if isinstance(event, StepTimed)][1:]
    # Every pass but the prefill, of the target and of the draft, in a few shapes.
    assert place.replayed > len(later)
    assert place.recorded <= 4
    assert lab.occupancy().live == 0


@pytest.mark.slow
@without_gpu
def test_a_mixed_batch_gives_the_tokens_of_each_request_alone(engine, reference, poisoned_outputs):
    """Sequences join and leave, windows and lengths differ; every step is padded to some bucket."""
    configs = [replace(PAGED, speculative=kind, num_speculative_tokens=3) for kind in ("off", "draft", "ngram")]
    prompts = [PROMPT, "A king", PROMPT + " and once"]
    lab = engine(interpreted=True)
    samplings = [replace(SAMPLING, max_tokens=length) for length in (2, 5, 3)]
    asked = list(zip(prompts, configs, samplings, strict=True))
    runs = [request.result() for request in [lab.submit(*one) for one in asked]]
    assert [run.token_ids for run in runs] == [reference.generate(*one).token_ids for one in asked]
    assert fell_back(runs[0]) == []
    assert Again.made[0].replayed > Again.made[0].recorded > 1


@without_gpu
@pytest.mark.parametrize(("where", "number"), [("record", 1), ("record", 2), ("replay", 4)])
def test_a_failing_graph_is_replaced_by_kernel_launches(engine, reference, where, number):
    """At its capture or later, the target's or the draft's: kernels are launched instead, and the text is the same."""
    lab = engine(failing={where: number}, error=RuntimeError("operation not permitted\nand much more"))
    run = lab.generate(PROMPT, DRAFT, SAMPLING)
    plain = reference.generate(PROMPT, DRAFT, SAMPLING)
    assert run.token_ids == plain.token_ids
    assert run.metrics.mean_acceptance_length == plain.metrics.mean_acceptance_length
    assert [(event.part, event.reason) for event in fell_back(run)] == [
        ("cuda_graph", "RuntimeError: operation not permitted")
    ]
    (place,) = Again.made
    lab.generate(PROMPT, DRAFT, SAMPLING)
    assert {"record": place.recorded, "replay": place.replayed}[where] == number  # it is not asked again
    assert len(Again.made) == 1


@without_gpu
@pytest.mark.parametrize(
    "error",
    [torch.OutOfMemoryError("no more"), RuntimeError("Triton Error [CUDA]: out of memory")],
    ids=["torch", "triton"],
)
def test_graphs_are_freed_when_memory_runs_short(engine, reference, monkeypatch, error):
    """A prefill, which is not captured, finds no memory until the graphs are freed. The next request has graphs again,
    unless it comes while another runs."""
    lab = engine()
    first = lab.generate(PROMPT, PAGED, SAMPLING)
    forward, calls = lab.target.forward, []

    def short(*args):
        calls.append(1)
        if len(calls) == 1:
            raise error
        return forward(*args)

    monkeypatch.setattr(lab.target, "forward", short)
    second = lab.generate(PROMPT, PAGED, SAMPLING)
    assert first.token_ids == second.token_ids == reference.generate(PROMPT, PAGED, SAMPLING).token_ids
    assert [event.part for event in fell_back(second)] == ["cuda_graph"]
    assert "Memory ran short" in fell_back(second)[0].reason
    gone = weakref.ref(Again.made.pop())
    gc.collect()
    assert gone() is None
    third = lab.generate(PROMPT, PAGED, SAMPLING)
    assert fell_back(third) == []
    assert Again.made[0].replayed
    calls.clear()
    pair = [lab.submit(PROMPT, PAGED, SAMPLING)]
    lab.step()
    pair.append(lab.submit(PROMPT, PAGED, SAMPLING))
    for run in (request.result() for request in pair):
        assert run.token_ids == first.token_ids
        assert [event.part for event in fell_back(run)] == ["cuda_graph"]


@without_gpu
def test_a_step_that_finds_no_memory_for_its_graph_leaves_the_others_theirs(engine, reference):
    """It is launched kernel by kernel, whenever it comes again, until a request comes to an idle engine."""
    lab = engine(failing={"record": 2}, error=torch.OutOfMemoryError("CUDA out of memory"))
    run = lab.generate(PROMPT, DRAFT, SAMPLING)
    assert run.token_ids == reference.generate(PROMPT, DRAFT, SAMPLING).token_ids
    assert [(event.part, event.reason) for event in fell_back(run)] == [
        ("cuda_graph", f"There was no memory to capture {SECOND}. Only steps of that shape are affected.")
    ]
    (place,) = Again.made
    (pool,) = lab._cores
    assert place.recorded == pool.target.num_captured + 1 > 2
    assert place.replayed > 2
    again = lab.generate(PROMPT, DRAFT, SAMPLING)
    assert (again.token_ids, fell_back(again)) == (run.token_ids, [])
    assert place.recorded == pool.target.num_captured + 1 > 3


@without_gpu
def test_warming_up_captures_the_shapes_needed_later(engine):
    """Each capture is reported before it starts, a failed one by the first run."""
    lab, lines = engine(), []
    lab.warm_up(DRAFT, sequences=2, longest=400, report=lines.append)
    place = Again.made[0]
    assert place.recorded == len(lines) == 8  # one and two sequences; target: 1 and 4 tokens, draft: 1 and 2
    assert lines[0] == "CUDA graph: llama, 1 x 1 tokens, context 512"
    runs = [request.result() for request in [lab.submit(PROMPT, DRAFT, SAMPLING) for _ in range(2)]]
    assert [fell_back(run) for run in runs] == [[], []]
    assert place.replayed > 0
    # Near the end of a run a window is cut short: a shape that could not be foreseen.
    assert 8 <= place.recorded <= 10
    lines.clear()
    failing = engine(failing={"record": 2})
    failing.warm_up(PAGED, sequences=4, report=lines.append)
    assert [event.part for event in fell_back(failing.generate(PROMPT, PAGED, SAMPLING))] == ["cuda_graph"]
    for off in ({"cuda_graphs": False}, {"kernels": "reference"}):
        engine().warm_up(replace(PAGED, **off), report=lines.append)
    assert len(lines) == 2


@without_gpu
def test_no_step_is_captured_while_requests_are_timed_or_settings_compared(engine, monkeypatch):
    """Nor is one where the memory holds the pool of one setting only: then each run's is made anew, with its graphs."""
    timed, finish, stream = [], throughput.finish, Engine.stream

    def recorded() -> int:
        return sum(place.recorded for place in Again.made)

    def finish_counted(*asked):
        before = recorded()
        found = finish(*asked)
        timed.append(recorded() - before)
        return found

    def stream_counted(*asked, **how):
        before = recorded()
        yield from stream(*asked, **how)
        timed.append(recorded() - before)

    monkeypatch.setattr(throughput, "finish", finish_counted)
    lab = engine()
    for config in (PAGED, DRAFT):
        throughput.serve(lab, exactly(["Once", "The king", "A fox"], [5, 4, 6]), config, max_num_seqs=2)
    assert Again.made
    assert timed == [0, 0]
    monkeypatch.setattr(Engine, "stream", stream_counted)
    for kv_bytes, tokens in ((None, 8), (40_000, 6)):
        timed.clear()
        lab, sampling = engine(kv_bytes=kv_bytes), SamplingParams(max_tokens=tokens, seed=0)
        assert len(list(compare(lab, PROMPT, {"paged": PAGED, "draft": DRAFT}, sampling, 2))) == 6
        assert any(timed[:2])  # to warm up
        assert timed[2:] == [0] * 4
        assert len(lab._cores._cores) == (1 if kv_bytes else 2)


@without_gpu
def test_a_request_can_switch_cuda_graphs_off(engine, reference):
    """What was captured for others stays, and is not captured again."""
    lab = engine()
    expected = reference.generate(PROMPT, PAGED, SAMPLING).token_ids
    for off in ({"cuda_graphs": False}, {"kernels": "reference"}, {"paged": False, "kv_cache": False}):
        run = lab.generate(PROMPT, replace(PAGED, **off), SAMPLING)
        assert run.token_ids == expected
        assert not run.started.cuda_graphs
    assert Again.made == []
    assert lab.generate(PROMPT, PAGED, SAMPLING).started.cuda_graphs
    (place,) = Again.made
    recorded = place.recorded
    lab.generate(PROMPT, replace(PAGED, cuda_graphs=False), SAMPLING)
    assert lab.generate(PROMPT, PAGED, SAMPLING).token_ids == expected
    assert Again.made == [place]
    assert place.recorded == recorded > 0


# -- memory ----------------------------------------------------------------------------------


def scripted(monkeypatch: pytest.MonkeyPatch, vocabulary: int = 12) -> tuple[Mock, graphs.Graphs]:
    """A model whose logits are one-hot, and graphs of it."""
    monkeypatch.setattr(Again, "made", [], raising=False)
    monkeypatch.setattr(graphs, "CaptureStream", lambda device: Again(device, {}, RuntimeError("no")))

    def forward(ids, positions, plan, keep, out):
        return out.copy_(F.one_hot(ids[keep], vocabulary))

    model = Mock(device=torch.device("cpu"), vocabulary=vocabulary, forward=forward)
    model.name = "scripted"
    return model, graphs.Graphs()


def replayed(captured: graphs.Graphs, model: Mock, bucket: Bucket, token: int) -> torch.Tensor | None:
    """The logits of a step of one token by the graph of a bucket."""
    packed = bucket.layout(16).pack((1,), (0,), (1,), (array("i", [0]),), 16, model.device)
    return captured.forward(model, torch.tensor([token]), packed, 1, bucket, 16, None)


def test_graphs_share_the_memory_of_their_logits_and_results_do_not(monkeypatch):
    """A graph always writes to the same place, even after a larger one has needed more memory: then at least twice
    as much."""
    model, captured = scripted(monkeypatch, vocabulary=15)
    most = [1, 2, 3, 16, 64]
    buckets = [Bucket(sequences, 1, context) for sequences in most for context in (512, 1024, 2048)]
    first = [replayed(captured, model, bucket, token) for token, bucket in enumerate(buckets)]
    again = [replayed(captured, model, bucket, token) for token, bucket in enumerate(reversed(buckets))]
    for logits in (first, again):
        assert [row.argmax().item() for row in logits] == list(range(15))
    assert captured.count == 15
    logits = [captured.capture(model, bucket, 16, None).logits for bucket in buckets]
    assert [part.shape for part in logits] == [(bucket.rows, 15) for bucket in buckets]
    memory = {storage.data_ptr(): storage.nbytes() for storage in map(torch.Tensor.untyped_storage, logits)}
    assert list(memory.values()) == [rows * 15 * 4 for rows in (1, 2, 4, 16, 64)]


def in_the_end(error: Exception, cause: Exception) -> Exception:
    """``error``, raised while ``cause`` was: ending a capture may fail because of what failed within it."""
    error.__context__ = cause
    return error


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        in_the_end(RuntimeError("operation failed due to a previous error"), torch.OutOfMemoryError("CUDA")),
    ],
)
def test_a_bucket_without_memory_is_tried_once_and_the_next_in_a_new_pool_if_there_are_no_others(monkeypatch, error):
    """A pool of memory whose only graph is gone cannot be used again."""
    model, captured = scripted(monkeypatch)
    small, large, other = Bucket(1, 1, 512), Bucket(4, 1, 512), Bucket(2, 1, 512)
    record, asked = Again.record, []

    def short(place, run):
        asked.append(Again.made.index(place))
        if len(asked) in (1, 3):
            raise error
        return record(place, run)

    monkeypatch.setattr(Again, "record", short)
    tokens = [replayed(captured, model, bucket, 7) for bucket in (large, large, small, other, other, large, small)]
    assert [logits is not None for logits in tokens] == [False, False, True, False, False, False, True]
    assert asked == [0, 1, 1]
    assert captured.on
    assert captured.count == 1
    assert "scripted, 2 x 1 tokens, context 512" in captured.failure


ONE = SamplingParams(max_tokens=2, ignore_eos=True)


def need_the_memory(lab: Engine) -> None:
    lab._cores._budget.lower(lab._cores.bytes_in_use())
    lab.generate("Once", replace(PAGED, kv_dtype="int8"), ONE)


def change_the_weights(lab: Engine) -> None:
    lab.target.model.double()
    lab.generate("Once", PAGED, ONE)


@without_gpu
@pytest.mark.parametrize(
    "drop",
    [
        need_the_memory,
        change_the_weights,
        lambda lab: lab._cores._drop(lab._cores._idle()),
        lambda lab: lab._cores.abort_all(),
        lambda lab: next(iter(lab._cores)).target.close(),
    ],
    ids=["need the memory", "change the weights", "memory ran out", "broken off", "give up"],
)
def test_graphs_are_destroyed_while_no_thread_captures(monkeypatch, drop: Callable[[Engine], None]):
    """Whoever still refers to their cache, as the function that drops it does."""
    lab, record, alone = captured_engine(monkeypatch), Again.record, []

    def watched(place, run):
        replay, output = record(place, run)
        weakref.finalize(replay, lambda: alone.append(CAPTURING.locked()))
        return replay, output

    monkeypatch.setattr(Again, "record", watched)
    lab.generate("Once", PAGED, ONE)
    drop(lab)
    assert alone == [True]
