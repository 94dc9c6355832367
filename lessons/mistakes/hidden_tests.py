"""The hidden tests of an exercise: what a program does on prompts, or with draws, beside the right one."""

from __future__ import annotations

from typing import Any

from lab.util.messages import error_summary
from lessons.mistakes.evidence import NOTICED, RunLimit, drawn, evidence
from lessons.mistakes.mistake import HiddenTest, Mistake

PROMPTS = 1, 2
"""Numbers of the prompts on which code that writes a text is tried."""
SHORT = {"crash": "It crashes", "other": "The text is wrong", "slow": "It is wasteful"}


def hidden_tests(mistake: Mistake, program: dict[str, Any]) -> list[HiddenTest]:
    """Every hidden test, with its finding in a program."""
    if mistake.id == "ratio":
        return _of_rule(mistake, program)
    found = []
    for number in PROMPTS:
        one = evidence(mistake, program, RunLimit(), number)
        problem = "" if one.outcome == "right" else f"{SHORT[one.outcome]}. {one.say}"
        found.append(HiddenTest(f"It writes the text of prompt {number}, and wastes no pass.", problem))
    return found


def _of_rule(mistake: Mistake, program: dict[str, Any]) -> list[HiddenTest]:
    tests = "What comes out has the distribution p.", "As many draft tokens are accepted as can be."
    watch = RunLimit()
    watch.start("")
    right = drawn(mistake.program(mistake.right)["verify"], watch)
    try:
        found = drawn(program["verify"], watch)
    except Exception as error:
        return [HiddenTest(test, f"It crashes: {error_summary(error)}.") for test in tests]
    away = "" if found.p_value >= NOTICED else f"It does not: a test of the counts gives {found.p_value:.2g}."
    short = abs(found.accepted - right.accepted) > 0.01
    few = f"{found.accepted:.0%} are accepted, where {right.accepted:.0%} are right." if short else ""
    return [HiddenTest(tests[0], away), HiddenTest(tests[1], few)]
