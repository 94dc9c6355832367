"""The first page of a site, and the README that a static Space needs beside it."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from lab.claims import CLAIMS
from lab.claims.claim import WORDS
from lab.trace.run import Run
from visualize.assets import read
from visualize.export.lessons import address as lesson_address
from visualize.export.pages import Page, filled
from visualize.export.runs import Recording, address
from visualize.recorded_results import logprobs_cost
from visualize.reduce.metric_cards import READOUTS, Readout

ABOUT = "Watch a real LLM engine generate text: recorded runs."
SHOWN = [readout for readout in READOUTS if readout.key in ("speed", "pass", "accepted", "kv", "first")]
"""The readouts in the list of runs."""


def page(
    recordings: Sequence[Recording], contents: Sequence[Mapping[str, Any]], claims: Mapping[str, Any], where: str
) -> Page:
    """A list of everything on the site. ``where``: a sentence that says on which machine the lessons, the claims and
    the site's own runs were recorded."""
    by_device: dict[str, list[Recording]] = {}
    for one in recordings:
        by_device.setdefault(one.device, []).append(one)
    body = filled(
        "export/index.html",
        where=where,
        runs="".join(_table(device, some) for device, some in by_device.items()),
        cost=escape(logprobs_cost() or "how much was not measured"),
        lessons="".join(map(_lesson, contents)),
        tally=_tally(claims),
    )
    return Page(path="index.html", under="Runs", title="recorded runs, lessons, claims", about=ABOUT, body=body)


def _table(device: str, recordings: Sequence[Recording]) -> str:
    head = "".join(
        f'<th scope="col" tabindex="0" data-about="{escape(shown.about)}">{escape(shown.label)}</th>' for shown in SHOWN
    )
    body = "".join(map(_row, recordings))
    return f"""<div class="scrolls"><table>
<caption>Recorded on {escape(device)}.{_repeated(recordings)}</caption>
<thead><tr><th scope="col">run</th>{head}<td></td></tr></thead>
<tbody>{body}</tbody>
</table></div>"""


def _repeated(recordings: Sequence[Recording]) -> str:
    counts = {len(recording.repeats) for recording in recordings}
    if max(counts) == 1:
        return ""
    most = f"{'up to ' * (len(counts) > 1)}{max(counts)}"
    return f" Every figure is the median of {most} runs; the one of median speed is played."


def _row(recording: Recording) -> str:
    cells = "".join(_cell(readout, recording.repeats) for readout in SHOWN)
    return (
        f'<tr><th scope="row"><a href="{address(recording)}">{escape(recording.title)}</a>'
        f"<small>{escape(recording.about)}</small></th>{cells}"
        f'<td><a href="runs/{recording.name}.json" download>File</a></td></tr>'
    )


def _cell(readout: Readout, repeats: Sequence[Run]) -> str:
    """The median and, on hover or at a Tab stop, the range of the runs."""
    found = sorted((readout.read(run.metrics) for run in repeats), key=lambda reading: reading.size or 0.0)
    least, most = (f"{one.value} {one.unit}".strip() for one in (found[0], found[-1]))
    middle = found[len(found) // 2]
    spread = escape(f"{len(found)} runs: from {least} to {most}")
    about = f' tabindex="0" data-about="{spread}"' if least != most else ""
    return f"<td{about}><b>{escape(middle.value)}</b> {escape(middle.unit)}</td>"


def _lesson(lesson: Mapping[str, Any]) -> str:
    title, number = escape(lesson["title"]), lesson["number"]
    minutes = f"<small>{lesson['minutes']} min</small>"
    return f'<li value="{number}"><a href="{lesson_address(number)}">{title}</a> {minutes}</li>'


def _tally(claims: Mapping[str, Any]) -> str:
    words = [found["verdict"] for found in claims.values() if "verdict" in found]  # others have a problem
    counts = {label: words.count(word) for word, label in WORDS.items()} | {"not checked": len(CLAIMS) - len(words)}
    return ", ".join(f"{escape(label)}: {count}" for label, count in counts.items() if count)


def readme(where: str) -> str:
    """``README.md``, with the header that a static Space reads. ``where``: plain text."""
    return read("export/readme.md").format(where=where)
