"""The eight mistakes: what each does, that only the right repair mends it, and the hidden tests of the exercises."""

from __future__ import annotations

import functools
import io
import runpy
import subprocess
import sys
import threading
from contextlib import redirect_stdout
from pathlib import Path
from unittest.mock import patch

import pytest
from transformers import PreTrainedModel

from lab.claims.trial import Stopped
from lab.errors import LabError
from lessons.__main__ import main
from lessons.course import course
from lessons.mistakes.evidence import MistakeEvidence, RunLimit, evidence
from lessons.mistakes.exercise import check, numbered, write_starter
from lessons.mistakes.hidden_tests import hidden_tests
from lessons.mistakes.mistake import HOLE, MISTAKES
from lessons.mistakes.runtime import models
from tests import tiny_models

EFFECTS = {
    "position": ("other", True),
    "reread": ("other", False),
    "rows": ("other", True),
    "ratio": ("other", False),
    "bonus": ("slow", False),
    "rollback": ("other", None),
    "scale": ("other", None),
    "blocks": ("crash", True),
}
"""What each mistake does, and whether a reader would notice; None: that depends on the text."""
SOLUTIONS = {
    "position": (
        "if layer + 1 == self.keys.shape[0]:\n            self.length = end",
        "self.length += key.shape[1] * (layer == len(self.values) - 1)",
        "last = len(self.keys) - 1\n        self.length = end if layer == last else self.length",
    ),
    "reread": (
        "cache.truncate(cache.common(text))\n    return model(text[cache.length :], cache)",
        "n = cache.common(text)\n    if n < cache.length:\n        cache.truncate(n)\n    "
        "return model(text[n:], cache)",
        "new = len(text) - cache.common(text)\n    cache.truncate(len(text) - new)\n    "
        "return model(text[-new:], cache)",
    ),
    "rows": ("n = ids.shape[-1]", "n = ids.numel()", "n = len(ids[0])"),
    "ratio": (
        "chance = p[drafted] / q[drafted]",
        "chance = torch.minimum(p, q)[drafted] / q[drafted]",
        "chance = (p[drafted].log() - q[drafted].log()).exp()",
    ),
    "bonus": (
        "text = guess + [best[-1]]",
        "text = text + best",
        "text = guess\n            text.append(best[accepted])",
    ),
    "rollback": (
        "cache.truncate(len(text) - 1)\n        unread = text[-1:]",
        "cache.truncate(cache.length - (gamma - accepted))\n        unread = [text[-1]]",
        "cache.truncate(cache.common(text[:-1]))\n        unread = text[cache.length :]",
    ),
    "scale": (
        "scale = scale.clamp(min=1e-20)",
        "scale = torch.where(scale > 0, scale, 1.0)",
        "scale = scale.bfloat16().float().clamp(min=1e-30)",
    ),
    "blocks": (
        "if position // 16 == len(self.blocks):\n            self.blocks.append(self.free.pop())\n        "
        "return self.blocks[position // 16] * 16 + position % 16",
        "while len(self.blocks) <= position // 16:\n            self.blocks += [self.free.pop()]\n        "
        "block, place = divmod(position, 16)\n        return self.blocks[block] * 16 + place",
        "need = position // 16 + 1 - len(self.blocks)\n        self.blocks += [self.free.pop() for _ in range(need)]\n"
        "        return 16 * self.blocks[position // 16] + (position & 15)",
    ),
}


def found(id: str, repair: int | None) -> MistakeEvidence:
    return evidence(MISTAKES[id], MISTAKES[id].program(repair), Shares())


class Shares(RunLimit):
    """Checks that the share that is done grows with every pass."""

    last = 0.0

    def __call__(self) -> None:
        super().__call__()
        assert self.last <= self.share <= 1
        self.last = self.share


def shorten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts from now on are shorter: they begin a third block before their last token."""
    monkeypatch.setattr("lessons.mistakes.evidence.TOKENS", 14)


@functools.cache
def small_pair() -> tuple[PreTrainedModel, PreTrainedModel]:
    draft = models()[1]
    return draft, tiny_models.perturbed(draft, 0.02)


def on_a_small_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on the draft writes, and one like it drafts: what is right is so with any models, and these are fast."""
    monkeypatch.setattr("lessons.mistakes.evidence.models", small_pair)
    monkeypatch.setattr("lessons.mistakes.evidence.TOKENS", 15)  # of no other test: the right texts are kept


@pytest.mark.slow
@pytest.mark.parametrize("id", MISTAKES)
def test_the_right_repair_removes_the_evidence_and_no_other_does(id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if id != "blocks":  # of which a wrong repair fails later
        shorten(monkeypatch)
    broken, (outcome, noticed) = found(id, None), EFFECTS[id]
    assert broken.outcome == outcome, broken
    assert noticed in (None, broken.noticed), broken
    assert len(broken.chart.series) == 2
    repaired = [found(id, place) for place in range(3)]
    assert [one.outcome == "right" for one in repaired] == [repair.right for repair in MISTAKES[id].repairs], repaired
    if id == "bonus":
        assert broken.text.this == broken.text.right == ("", ""), "the text does not show it"
    elif broken.text:
        assert broken.text.this != broken.text.right


def test_cards_are_whole_and_short() -> None:
    assert list(EFFECTS) == list(SOLUTIONS) == list(MISTAKES)
    for mistake in MISTAKES.values():
        assert mistake.lesson in course()
        assert mistake.sample.count(mistake.fault) == 1
        assert [repair.right for repair in mistake.repairs].count(True) == 1
        assert 4 <= len(mistake.sample.strip().splitlines()) <= 32
        assert all(len(repair.code.strip().splitlines()) <= 3 for repair in mistake.repairs)
        assert len({mistake.source(place) for place in (None, 0, 1, 2)}) == 4


def test_a_run_ends_when_it_is_stopped_and_when_its_time_is_over() -> None:
    cancelled = threading.Event()
    cancelled.set()
    rows = MISTAKES["rows"]
    with pytest.raises(Stopped):
        evidence(rows, rows.program(None), RunLimit(cancelled), number=3)
    with pytest.raises(LabError, match="It was stopped after 0 seconds"):
        evidence(rows, rows.program(None), RunLimit(seconds=0), number=3)


# -- exercises -------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("id", MISTAKES)
def test_hidden_tests_fail_on_the_mistake_and_pass_on_three_solutions(id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mistake = MISTAKES[id]
    if id != "rollback":  # of which one of the texts goes wrong later
        shorten(monkeypatch)
    wrong = hidden_tests(mistake, mistake.program(None))
    assert len(wrong) >= 2
    assert all(one.problem for one in wrong), wrong
    shorten(monkeypatch)
    empty = hidden_tests(mistake, filled(id, HOLE))
    assert all(one.problem.startswith("It crashes") and "NotImplementedError" in one.problem for one in empty), empty
    if id != "ratio":  # which writes no text
        on_a_small_pair(monkeypatch)
    for lines in SOLUTIONS[id]:
        right = hidden_tests(mistake, filled(id, lines))
        assert [one.test for one in right] == [one.test for one in wrong]
        assert not any(one.problem for one in right), (lines, right)


def filled(id: str, lines: str) -> dict:
    """The names of an exercise's file with these lines in place of its hole."""
    program: dict = {}
    exec(MISTAKES[id].starter().replace(HOLE, lines), program)
    return program


@pytest.mark.slow
@pytest.mark.parametrize(
    ("id", "lines", "said"),
    [
        ("bonus", "text = guess + [target(guess)[-1].argmax()]", "It is wasteful"),  # tensors, and a pass more
        ("bonus", "text = guess + [None]", "It crashes"),
        ("bonus", "text = guess + [4096]", "It crashes. IndexError"),
        ("scale", "return x.round()", "It crashes"),
    ],
)
def test_what_a_file_returns_is_judged_whatever_it_is(
    id: str, lines: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shorten(monkeypatch)
    found = hidden_tests(MISTAKES[id], filled(id, lines))
    assert all(one.problem.startswith(said) for one in found), found


@pytest.mark.parametrize("id", MISTAKES)
def test_a_starter_is_written_once_and_has_a_hole(
    id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    number = str(MISTAKES[id].number)
    assert main(["exercise", number]) == 0
    [written] = tmp_path.iterdir()
    text = written.read_text("utf-8")
    assert HOLE in text
    assert f"exercise {number} --check {written.name}" in text
    assert MISTAKES[id].fault.strip() not in text
    compile(text, written.name, "exec")
    assert main(["exercise", number]) == 2
    assert "exists already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("while True:\n    pass\n", "did not end within"),
        ("def verify(:\n", "is not Python"),
        ("import os\nos._exit(3)\n", "ended Python before the tests had ended (exit status 3)"),
        ("verify = 5\n", "has no verify"),
    ],
)
def test_a_file_that_cannot_be_tested_ends_in_a_sentence(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(text)
    with pytest.raises(LabError) as refused:
        check(MISTAKES["ratio"], file, 2 if "while" in text else 300)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def here(command: list[str], **how: object) -> subprocess.CompletedProcess[str]:
    """In place of ``subprocess.run``: ``python -m`` in this process, where torch and the models are."""
    out = io.StringIO()
    with redirect_stdout(out), patch.object(sys, "argv", command[2:]):
        runpy.run_module(command[2], run_name="__main__")
    return subprocess.CompletedProcess(command, 0, out.getvalue(), "")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")
def test_a_file_is_checked_in_a_process_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_starter(numbered(4), tmp_path)
    assert main(["exercise", "4", "--check", str(file)]) == 1
    assert capsys.readouterr().out.count("It crashes: NotImplementedError") == 2
    file.write_text(file.read_text().replace(HOLE, SOLUTIONS["ratio"][0]))
    monkeypatch.setattr("lessons.mistakes.exercise.subprocess.run", here)
    assert main(["exercise", "4", "--check", str(file)]) == 0
    assert capsys.readouterr().out.count("✓") == 2


def test_what_does_not_exist_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["exercise", "9"]) == 2
    assert main(["exercise", "3", "--check", str(tmp_path / "none.py")]) == 2
    assert main(["exercise", "--check", "x.py"]) == 2
    said = capsys.readouterr().err
    assert "There is no exercise 9. There are 1 to 8" in said
    assert "There is no file" in said
    assert main(["exercise"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 8
