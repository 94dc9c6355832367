"""The capstone: work is conserved, no block leaks, every case has a way to pass, and a failed target says why."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lab.errors import ConfigError
from lessons.__main__ import main
from lessons.capstone.cases import CASES, CapstoneCase, ServerChoices, attempt, grade, memory, served
from lessons.capstone.simulation import Load, Simulated, SimulatedRequest, SimulatedStep

PASSES = {
    "chat": ServerChoices(
        gpu_memory_utilization=0.97, enable_prefix_caching=True, speculative="draft", num_speculative_tokens=3
    ),
    "agents": ServerChoices(enable_prefix_caching=True, max_num_seqs=32, max_num_batched_tokens=1024),
    "batch": ServerChoices(max_num_seqs=192, max_num_batched_tokens=2048),
}
SMALL = Load(users=6, rate=2, turns=3, pause_s=0.1, shared=100, prompt=(20, 60), output=(5, 30))


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_case_fails_by_default_and_can_be_passed(name: str) -> None:
    default, better = attempt(CASES[name], ServerChoices()), attempt(CASES[name], PASSES[name])
    assert not default.passed
    assert better.passed, better.marks
    assert all(mark.passed or mark.limited for mark in default.marks)
    if name == "chat":
        assert better == attempt(CASES[name], PASSES[name])  # the same seed, the same outcome


@pytest.mark.parametrize(
    "chosen",
    [
        ServerChoices(max_num_batched_tokens=64),
        ServerChoices(enable_prefix_caching=True, max_num_seqs=2),
        ServerChoices(speculative="draft"),
        ServerChoices(speculative="ngram", kv_dtype="int4", enable_prefix_caching=True),
    ],
)
def test_work_is_conserved_and_no_block_leaks(chosen: ServerChoices) -> None:
    case = replace(CASES["agents"], load=SMALL)
    result = served(case, chosen, case.deployment(chosen))
    assert len(result.requests) == SMALL.users * SMALL.turns
    for one in result.requests:
        assert SMALL.output[0] <= sum(count for _, count in one.came) <= SMALL.output[1]
        assert one.arrived <= one.admitted < one.came[0][0]
        assert one.cached < one.prompt
    assert result.left == 0
    assert max(one.running for one in result.steps) <= chosen.max_num_seqs
    computed = sum(one.prompt - one.cached for one in result.requests)
    assert result.preempted or sum(one.prefill for one in result.steps) == computed
    starts = [one.ended - one.ms for one in result.steps]
    assert all(one.ended <= start + 1e-6 for one, start in zip(result.steps, starts[1:], strict=False))


def test_a_small_pool_preempts_and_still_ends() -> None:
    case, chosen = (
        CASES["batch"],
        ServerChoices(max_num_seqs=192, max_num_batched_tokens=2048, gpu_memory_utilization=0.3),
    )
    result = served(case, chosen, case.deployment(chosen))
    assert result.preempted > 0
    assert result.left == 0


def test_what_makes_room_is_only_what_takes_some() -> None:
    chat = CASES["chat"]
    for chosen, dtype, draft in (
        (ServerChoices(), False, False),  # the weights alone do not fit
        (ServerChoices(gpu_memory_utilization=0.9, speculative="draft"), False, True),
        (ServerChoices(gpu_memory_utilization=0.936), True, False),
    ):
        said = memory(chat, chosen, chat.deployment(chosen)).limited
        assert ("KV dtype" in said, "no draft model" in said) == (dtype, draft), said


def test_more_memory_never_lowers_what_fits() -> None:
    case = CASES["agents"]
    blocks = [
        case.deployment(ServerChoices(gpu_memory_utilization=share / 100)).num_blocks for share in range(20, 96, 5)
    ]
    assert blocks == sorted(blocks)
    for chosen in (ServerChoices(gpu_memory_utilization=0.2), ServerChoices(gpu_memory_utilization=1.0)):
        found = memory(case, chosen, case.deployment(chosen))
        assert not found.passed
        assert found.limited


def scripted(case: CapstoneCase, ttft: float, tpot: float, wait: str = "", prefill: int = 0) -> Simulated:
    """Ten requests that come together; half of a late one's time to first token is in the queue, and a little more."""
    came = [(ttft, 1), (ttft + 10 * tpot, 10)]
    requests = [SimulatedRequest(i, 0, 0.0, 100, 0.6 * ttft if wait else 0.0, 0, wait, list(came)) for i in range(10)]
    ended = came[-1][0]
    return Simulated(requests, [SimulatedStep(ended, 2 * tpot, 0.0, prefill, 0, 10, 0, 15.0, "memory")], 0, 0)


@pytest.mark.parametrize(
    ("ttft", "tpot", "wait", "prefill", "said"),
    [
        (0.5, 0.5, "", 0, {}),
        (2, 0.5, "seqs", 0, {"TTFT p95": "max-num-seqs"}),
        (2, 0.5, "blocks", 0, {"TTFT p95": "block pool was full"}),
        (2, 0.5, "", 0, {"TTFT p95": "Reading the prompts"}),
        (0.5, 2, "", 0, {"TPOT p95": "memory-bound"}),
        (0.5, 2, "", 500, {"TPOT p95": "Slow steps also read prompts"}),
    ],
)
def test_a_failed_target_says_what_limited_it(
    ttft: float, tpot: float, wait: str, prefill: int, said: dict[str, str]
) -> None:
    case = CASES["agents"]
    found = scripted(case, ttft * case.targets.ttft_ms, tpot * case.targets.tpot_ms, wait, prefill)
    marks = {mark.name: mark for mark in grade(case, ServerChoices(), found)}
    assert {name for name, mark in marks.items() if not mark.passed} == {*said, *(["Goodput"] if said else [])}
    for name, words in said.items():
        assert words in marks[name].limited


def test_the_command_line_grades_and_refuses(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["capstone", "chat"]) == 1
    said = capsys.readouterr().out
    assert "✗ Fits memory" in said
    assert "with probability 70%" in said
    assert "Nothing here was measured" in said
    assert "vllm serve meta-llama/Llama-3.1-70B" in said
    assert main(["capstone", "nobody"]) == 2
    with pytest.raises(ConfigError, match="off, draft or ngram"):
        ServerChoices(speculative="eagle3")
