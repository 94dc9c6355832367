"""The lessons' Markdown as HTML: every formula becomes MathML, and no markup comes in from outside."""

from __future__ import annotations

import re

import pytest

from lessons.course import course
from visualize.markdown import to_html


@pytest.mark.parametrize("number", course())
def test_every_formula_of_the_course_becomes_mathml(number: int) -> None:
    lesson = course()[number]
    for text in (lesson.introduction, re.sub(r"\{\{.*?\}\}", "7", lesson.explain.text, flags=re.DOTALL)):
        html = to_html(text)
        assert html.count("<math ") == len(re.findall(r"\$\$[^$]+\$\$|\$[^$]+\$", text))
        assert "$" not in html
        assert "\\" not in html
        assert ("<table>" in html) == ("| --- " in text)


@pytest.mark.parametrize(
    "text",
    [
        "<script>window.pwned=1</script>",
        "<img src=x onerror=window.pwned=1>",
        "[here](javascript:alert(1))",
        "![here](https://example.org/x.png)",
        '[here](data:text/html,x "<b>")',
        "$<script>window.pwned=1</script>$",
        "$\\text{<img src=x>}$",
        "$\\text{<script/>}$",
        "$\\href{javascript:alert(1)}{x}$",
        "| <b>a</b> |\n| --- |\n| <i>b</i> |",
    ],
)
def test_hostile_text_stays_text(text: str) -> None:
    html = to_html(text)
    assert not re.search(r"<(script|img|b|i)\b|(href|src)=\"(javascript|data)", html)
