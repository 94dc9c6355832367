"""Every technical term is explained where it first appears, and set there in bold or italics.

Texts are read in the order of the page. Whether the explanation stands beside the term is for a person to check.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from lessons.course import course
from lessons.lesson import AnyQuestion, Bars, Choice, Curve, Lesson, Slider
from visualize.states import LEGEND, STATES

TERMS = [
    r"tokens?", r"pass(es)?", r"layers?", r"weights?", r"parameters?", r"prefill", r"decodes?|decoding", r"prompts?",
    r"TTFT|time to first token", r"inter-token latency", r"medians?", r"memory-bound", r"own cache",
    r"keys?", r"query|queries", r"attention", r"KV cache", r"transformers?", r"confidence interval", r"GPUs?",
    r"heads?", r"MHA", r"GQA", r"MQA", r"formats?", r"bfloat16", r"INT8", r"INT4", r"scales?",
    r"quantised?", r"perplexity", r"greedy", r"kernels?", r"distributions?", r"nats", r"batch(es)?",
    r"sequences?", r"slots?", r"blocks?", r"block table", r"paged", r"preempt\w*", r"contiguous", r"fragmentation",
    r"throughput", r"prefix caching", r"copy on write", r"evict\w*", r"system prompts?", r"continuous batching",
    r"speculative|speculation", r"drafts?", r"targets?", r"rounds?", r"gamma", r"accept\w*", r"reject\w*",
    r"recovered", r"bonus", r"verif\w+", r"residual", r"total variation", r"adaptive", r"cost ratio", r"window",
    r"wide pass", r"prompt lookup", r"early exit", r"ladder", r"roofline",
]  # fmt: skip
MARKED = re.compile(r"\*\*[^*]+\*\*|(?<!\*)\*[^*\n]+\*(?!\*)")


def read(lesson: Lesson) -> Iterator[str]:
    """All texts of a lesson in reading order, except for its title, which names what will be explained."""
    front = lesson.front
    yield lesson.introduction
    yield from asked(front.predict)
    for view in front.observe:
        yield from (view.title, *view.bars) if isinstance(view, Bars) else ()
        yield view.say
    yield lesson.explain.text
    yield from (front.change.title, front.change.why, *(shown.label for shown in front.change.shows))
    yield from asked(front.check)


def asked(question: AnyQuestion) -> Iterator[str]:
    yield question.question.text
    if isinstance(question, Choice):
        yield from (option.text for option in question.options)
    if isinstance(question, (Slider, Curve)):
        yield question.label


PLACE = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)
WORDS = re.compile(r'"([^"]*)"')


def prose(text: str) -> str:
    """The text without expressions and addresses, but with the strings that an expression may give."""
    said = PLACE.sub(lambda place: " ".join(WORDS.findall(place[1])), text)
    return " ".join(re.sub(r"\]\([^)]*\)|\$[^$]*\$", " ", said).split())


@pytest.mark.parametrize("term", TERMS)
def test_a_term_is_explained_where_it_first_appears(term: str) -> None:
    word = re.compile(rf"(?<![\w-])(?:{term})(?![\w-])", re.IGNORECASE)
    for number, lesson in course().items():
        for text in map(prose, read(lesson)):
            if found := word.search(text):
                spans = [span.span() for span in MARKED.finditer(text)]
                inside = any(start <= found.start() < end for start, end in spans)
                around = text[max(0, found.start() - 60) : found.end() + 40]
                assert inside, f"lesson {number} has {found[0]!r} before it is explained: …{around}…"
                return
    pytest.fail(f"no lesson says {term}")


def test_no_view_shows_draft_tokens_before_they_are_explained() -> None:
    """The legends of the player and the race name each state; lesson 8 explains those of draft tokens."""
    explained, needed = 0, 10**6
    for number, lesson in course().items():
        runs = lesson.front.preset.runs
        shown = [view for view in lesson.front.observe if view.view in ("player", "race")]
        names = [view.run for view in shown if view.view == "player"] or (list(runs.settings) if shown else [])
        if any(runs.config(name).speculative != "off" for name in names):
            needed = min(needed, number)
        marked = " ".join(span.lower() for span in MARKED.findall(lesson.introduction))
        if all(STATES[key].label in marked for key in LEGEND if key not in ("prompt", "plain")):
            explained = explained or number
    assert 0 < explained <= needed


def test_every_drafter_is_mentioned_in_the_course() -> None:
    said = " ".join(lesson.introduction for lesson in course().values()).lower()
    assert all(name in said for name in ("lookup", "early exit", "draft model"))


@pytest.mark.parametrize("number", course())
def test_a_question_has_no_markdown(number: int) -> None:
    """It is shown as it is written."""
    front = course()[number].front
    assert not [
        text for question in (front.predict, front.check) for text in asked(question) if re.search(r"[*`]", text)
    ]
