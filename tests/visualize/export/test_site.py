"""A whole site, made by a scripted engine: every link leads to a file of the site, and hostile text stays text."""

from __future__ import annotations

import io
import json
import posixpath
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from lab.claims import CLAIMS
from lab.config import EngineConfig
from lab.errors import LabError
from lab.trace.json_codec import from_dict
from lab.trace.run import Run, RunFileError
from lessons.course import course
from lessons.expressions import ExpressionError
from tests.visualize.conftest import script
from tests.visualize.scripted import ScriptedEngine
from tests.visualize.test_takeaway import contradictory
from visualize.export import claims, index, lessons, runs
from visualize.export.folder import EVERY, MANIFEST
from visualize.export.runs import PRESETS, Recording
from visualize.export.site import QUICK, Terminal, Wanted, make
from visualize.format_numbers import three
from visualize.text import visible

HOSTILE = "<img src=x onerror=window.pwned=1></script><script>window.pwned=1</script>{where}<!-- where -->\u202e"
NAMESPACES = {"http://www.w3.org"}
"""Names, not addresses: nothing is requested from them."""
CITED = {
    found
    for lesson in course().values()
    for text in (lesson.introduction, lesson.explain.text)
    for found in re.findall(r"\]\((https?://[^/)]+)", text)
}
"""The hosts that the lessons cite."""


class Scripted(ScriptedEngine):
    """A scripted engine with what else an export asks of one."""

    device = "cpu"


class Markup(HTMLParser):
    """Tags, addresses and data of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[tuple[str, str]] = []
        self.attributes: set[str] = set()
        self.data: dict[str, str] = {}
        self._in = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        found = {name: value or "" for name, value in attrs}
        self.attributes |= found.keys()
        self.addresses += [(tag, found[name]) for name in ("href", "src") if name in found]
        self._in = found.get("id", "") if tag == "script" else ""

    def handle_endtag(self, tag: str) -> None:
        self._in = ""

    def handle_data(self, data: str) -> None:
        if self._in:
            self.data[self._in] = self.data.get(self._in, "") + data


def made(*files: Path, **engine: list[str]) -> dict[str, str]:
    return make(lambda pair: Scripted(**engine), replace(QUICK, files=files), Terminal(io.StringIO(), 0))


@pytest.fixture(scope="module")
def site() -> dict[str, str]:
    return made()


def pages(site: dict[str, str]) -> dict[str, Markup]:
    return {path: Markup(text) for path, text in site.items() if path.endswith(".html")}


@pytest.mark.slow
def test_every_page_is_made(site: dict[str, str]) -> None:
    assert set(pages(site)) == {
        "index.html",
        "claims.html",
        *(f"runs/{name}.html" for name in QUICK.runs),
        *(f"lessons/{number}.html" for number in QUICK.lessons),
    }
    assert set(EVERY) <= {*site, MANIFEST}, "known beforehand"
    assert set(Wanted().lessons) == set(course())
    assert site["README.md"].startswith("---\ntitle: ")
    assert "\nsdk: static\napp_file: index.html\n" in site["README.md"]


def test_a_claim_that_cannot_be_checked_has_the_reason_in_its_place() -> None:
    def load(pair: str) -> Any:
        raise LabError("No \u202e room.")

    name, reported = next(name for name, claim in CLAIMS.items() if not claim.arithmetic), []
    assert claims.record(load, [name], reported.append) == {name: {"problem": visible("No \u202e room.")}}
    assert reported[0] == f"claim 1 of 1, {name}"


def test_every_page_has_what_readers_and_browsers_need_and_a_policy_against_outside_content(
    site: dict[str, str],
) -> None:
    for path, page in pages(site).items():
        text = site[path]
        assert text.count("<main") == text.count(" aria-current=page>") == 1, path
        assert not re.search(r"<th[^>]*></th>", text), path
        assert len(re.findall('<meta property="og:description" content=".{20,}">', text)) == 1, path
        assert "default-src 'none'; script-src 'self' file:;" in text
        assert not any(name.startswith("on") for name in page.attributes)
        assert "style" not in page.tags
        for tag in re.findall(r"<script src=[^>]+>", text):
            assert ("plotly" in tag) == tag.endswith(" async>"), "no script waits for Plotly"


def test_every_link_is_relative_and_leads_to_a_file_of_the_site(site: dict[str, str]) -> None:
    seen = set()
    for path, page in pages(site).items():
        assert page.addresses
        for tag, address in page.addresses:
            parts = urlsplit(address)
            if parts.scheme == "data":
                assert tag == "link", "the icon"
            elif parts.scheme or parts.netloc:
                assert tag == "a"
                assert f"{parts.scheme}://{parts.netloc}" in CITED
            elif parts.path:
                to = posixpath.normpath(posixpath.join(posixpath.dirname(path), unquote(parts.path)))
                assert to in site, (path, address)
                seen.add(to)
            if parts.fragment:
                assert f'id="{parts.fragment}"' in site[to]
    assert set(site) - seen == {"README.md", ".nojekyll"}  # everything else is linked


def test_no_file_names_a_host_that_is_not_cited(site: dict[str, str]) -> None:
    own = [text for path, text in site.items() if path != "assets/plotly.min.js"]  # Plotly may load nothing: the CSP
    found = {host for text in own for host in re.findall(r"https?://[\w.-]+", text)}
    assert found <= CITED | NAMESPACES
    assert not any(re.search(r"url\(|@import|\bfetch\(|XMLHttpRequest|\bimport\(", text) for text in own)


def test_the_data_in_a_page_is_json_and_holds_only_what_was_recorded(site: dict[str, str]) -> None:
    lesson = json.loads(pages(site)["lessons/3.html"].data["recorded"], parse_constant=pytest.fail)
    assert lesson["predict"]["asked"]["given"] is None
    assert "mark" not in lesson["predict"]["asked"]
    assert len(lesson["predict"]["key"]["answers"]) == len(lesson["predict"]["asked"]["options"])
    before, after = (lesson["try"][when] for when in ("before", "after"))
    assert {row[2] for row in before["rows"]} == {before["see"]} == {""}
    assert [row[:2] for row in before["rows"]] == [row[:2] for row in after["rows"]]
    assert all(row[2] for row in after["rows"])
    assert after["see"]
    assert lesson["next"] == {"href": "9.html", "said": "Next: 9. Why it is lossless"}
    last = json.loads(pages(site)["lessons/9.html"].data["recorded"])
    assert last["next"]["href"] == "../claims.html"
    assert "{{" not in site["lessons/3.html"]
    checked = json.loads(pages(site)["claims.html"].data["recorded"], parse_constant=pytest.fail)
    assert tuple(checked) == QUICK.claims
    for name in QUICK.runs:
        assert f"<b>{three(run_of(site, name).metrics.tokens_per_second)}</b> tok/s" in site["index.html"]
    assert re.search(r"Recording them takes time: [^<]+\. “File” is", site["index.html"])


def test_every_figure_of_a_run_is_the_median_of_its_repeats() -> None:
    events = script(EngineConfig(), max_tokens=4)
    runs = [Run([replace(event, t_ms=slow * event.t_ms) for event in events]) for slow in (1.0, 9.0, 2.0)]
    listed = index.page([Recording("a", "A", "", "cpu", runs[0], runs)], [], {}, "").html()
    speeds = [run.metrics.tokens_per_second for run in runs]
    assert f"<b>{three(speeds[2])}</b> tok/s" in listed
    spread = f"3 runs: from {three(speeds[1])} tok/s to {three(speeds[0])} tok/s"
    assert f'<td tabindex="0" data-about="{spread}">' in listed, "Tab leads to it"
    assert "Every figure is the median of 3 runs; the one of median speed is played." in listed
    several, one = (Recording("a", "A", "p < q", "cpu", runs[0], runs[:count]) for count in (3, 1))
    assert "Every figure is the median of up to 3 runs;" in index.page([several, one], [], {}, "").html()
    alone = index.page([one], [], {}, "").html()
    assert "the median" not in alone
    assert "runs: from" not in alone
    assert "<small>p &lt; q</small>" in alone


def run_of(site: dict[str, str], name: str) -> Run:
    return Run(map(from_dict, json.loads(site[f"runs/{name}.json"])["events"]))


@pytest.mark.slow
def test_hostile_text_stays_text(site: dict[str, str], tmp_path: Path) -> None:
    events = script(EngineConfig(speculative="draft"), max_tokens=8, words=[HOSTILE], others=[HOSTILE])
    events[0] = replace(events[0], prompt=HOSTILE, prompt_pieces=(HOSTILE,), target=HOSTILE, device=HOSTILE)
    file = tmp_path / "<img src=x onerror=alert(1)> & “ü”.json"
    Run(events).save(file)
    calm = Run(script(EngineConfig(speculative="draft"), max_tokens=8))
    calm.save(tmp_path / "calm.json")
    before, now = made(tmp_path / "calm.json"), made(file, words=[HOSTILE], others=[HOSTILE])
    assert [path for path in now if path not in before] == [
        "runs/img-src-x-onerror-alert-1.html",
        "runs/img-src-x-onerror-alert-1.json",
    ]
    for path, page in pages(now).items():
        other = before.get(path, before["runs/calm.html"])
        assert page.tags == Markup(other).tags, path
        assert not any(name.startswith("on") for name in page.attributes)
        for text in page.data.values():
            for line in text.splitlines():
                json.loads(line)
    assert "Recorded on &lt;img" in now["index.html"]


def test_a_file_that_is_no_run_or_contradicts_itself_is_refused_before_models_load(tmp_path: Path) -> None:
    (bad := tmp_path / "bad.json").write_text("{}", "utf-8")
    Run(contradictory()[0][1]).save(odd := tmp_path / "odd.json")
    for file, says in ((bad, r"bad\.json is not a run's file"), (odd, "contradict each other")):
        with pytest.raises(RunFileError, match=says):
            make(pytest.fail, replace(QUICK, files=(file,)), Terminal(io.StringIO(), 0))


def test_every_run_of_a_whole_site_can_be_made() -> None:
    reported: list[str] = []
    recordings = runs.record(lambda pair: Scripted(), PRESETS, 1, reported.append)
    assert [one.name for one in recordings] == list(PRESETS)
    pools = {one.name: one.run.started.config["num_blocks"] for one in recordings}
    assert pools == dict.fromkeys(PRESETS, 32) | {"no-cache": None}
    assert {line.partition(", run ")[0] for line in reported} == {preset.title for preset in PRESETS.values()}


def test_a_lesson_without_a_right_answer_here_is_left_out_of_the_site(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    honest = lessons.record

    def record(load: Any, lesson: Any, step: Any) -> Any:
        if lesson.number == 9:
            raise ExpressionError("None of the answers is right on this machine.")
        return honest(load, lesson, step)

    monkeypatch.setattr(lessons, "record", record)
    said = io.StringIO()
    site = make(lambda pair: Scripted(), QUICK, Terminal(said, 5))
    assert "lesson 9 is left out: None of the answers is right on this machine." in said.getvalue()
    assert re.findall(r"\[(\d)/5\]", said.getvalue()) == list("12345")
    assert "lessons/9.html" not in site
    assert "9.html" not in site["index.html"] + site["assets/lesson.js"] + site["lessons/3.html"]


def test_runs_with_the_same_name_do_not_overwrite_each_other(tmp_path: Path) -> None:
    paths = [tmp_path / "a" / "plain.json", tmp_path / "b" / "plain.json"]
    for number, path in enumerate(paths, 1):
        path.parent.mkdir()
        Run(script(EngineConfig(), max_tokens=number + 1)).save(path)
    site = made(*paths)
    names = ["plain", "draft-drawn", "plain-2", "plain-3"]
    assert [path for path in site if re.fullmatch(r"runs/.+\.json", path)] == [f"runs/{name}.json" for name in names]
    assert len(run_of(site, "plain-3").token_ids) == 3
