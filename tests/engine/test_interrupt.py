"""Ctrl-C in a notebook or a program: a run ends between two steps, and nobody else's is disturbed."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest

from lab import EngineConfig, SamplingParams, load_engine
from lab.engine.cores import BROKEN_OFF
from lab.trace.events import BlockFreed
from tests import tiny_models

PROMPT = "The king had three daughters"
SPECULATE = EngineConfig(paged=True, block_size=4, speculative="draft", num_speculative_tokens=4)
SAMPLE = SamplingParams(max_tokens=60, temperature=1.0, seed=11, ignore_eos=True)


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """It raises KeyboardInterrupt, also where the shell has started the tests in the background, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class Pressing:
    """A watcher that presses Ctrl-C at the ``left``-th event from now on, as often as ``times`` says."""

    def __init__(self, times: int = 1) -> None:
        self.left, self.times = 0, times

    def __call__(self, owner: int, seconds: float, event: object) -> None:
        self.left -= 1
        if self.left == 0:
            for _ in range(self.times):
                signal.raise_signal(signal.SIGINT)


@pytest.mark.slow
@pytest.mark.parametrize("drafter", ["off", "draft"])
def test_ctrl_c_waits_for_the_end_of_the_step(ctrl_c, drafter):
    """In a notebook, at any event: the run that is waited for is cancelled, and all others are as if alone. (On a GPU a
    batch is rounded otherwise than one sequence.)"""
    lab = load_engine(device="cpu", on_event=(watch := Pressing()))
    config = EngineConfig(speculative=drafter, paged=True)
    sampling = SamplingParams(max_tokens=12, temperature=0.8, seed=2)
    alone = lab.generate(PROMPT, config, sampling)
    interrupted = 0
    for at in range(1, 70, 8):
        requests = [lab.submit(PROMPT, config, sampling) for _ in range(3)]
        watch.left = at
        try:
            requests[0].result()
        except KeyboardInterrupt:
            interrupted += 1
        watch.left = 0
        for request in requests[1:]:
            run = request.result()
            assert (run.reason, run.token_ids) == (alone.reason, alone.token_ids), at
            assert run.metrics.mean_acceptance_length == alone.metrics.mean_acceptance_length
        assert lab.occupancy().live == 0
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert interrupted > 5


@pytest.mark.slow
@pytest.mark.parametrize("kernels", ["auto", "reference"])
def test_a_second_ctrl_c_ends_the_step_and_all_that_is_under_way(ctrl_c, kernels):
    lab = load_engine(device="cpu", kernels=kernels, on_event=(watch := Pressing(times=2)))
    sampling = SamplingParams(max_tokens=12, ignore_eos=True)
    alone = lab.generate(PROMPT, SPECULATE, sampling)
    for at in range(5, 60, 18):
        requests = [lab.submit(PROMPT, SPECULATE, sampling) for _ in range(3)]
        watch.left = at
        with pytest.raises(KeyboardInterrupt):
            requests[0].result()
        ended = [request.result() for request in requests[1:]]
        assert {(run.reason, run.finished.message) for run in ended} == {("error", BROKEN_OFF)}
        assert lab.occupancy().live == 0
        assert lab.generate(PROMPT, SPECULATE, sampling).token_ids == alone.token_ids
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_block_that_was_being_given_back_is_not_given_back_again(ctrl_c):
    pressed: list[BlockFreed] = []

    def watch(owner, seconds, event):
        if isinstance(event, BlockFreed) and not pressed:
            pressed.append(event)
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    lab = load_engine(device="cpu", on_event=watch)
    requests = [lab.submit(PROMPT, SPECULATE, SAMPLE) for _ in range(2)]
    with pytest.raises(KeyboardInterrupt):
        requests[0].result()
    assert pressed
    assert requests[1].result().finished.message == BROKEN_OFF
    assert lab.generate(PROMPT, SPECULATE, SAMPLE).reason == "length"


def test_ctrl_c_does_not_wait_while_another_thread_steps(ctrl_c):
    lab = tiny_models.engine("llama")
    entered, leave = threading.Event(), threading.Event()
    step = lab._step

    def held() -> bool:
        entered.set()
        assert leave.wait(20)
        return step()

    lab._step = held
    other = threading.Thread(target=lab.generate, args=(PROMPT, None, SamplingParams(max_tokens=2)), daemon=True)
    other.start()
    assert entered.wait(20)
    mine = lab.submit(PROMPT, None, SamplingParams(max_tokens=4))
    pressed = threading.Timer(0.2, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
    pressed.start()
    with pytest.raises(KeyboardInterrupt):
        mine.result()
    assert other.is_alive()
    leave.set()
    other.join(20)
    assert mine.finished
