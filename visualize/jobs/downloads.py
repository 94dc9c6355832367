"""A run to download: as a file to open again, as numbers, and as a page that plays by itself."""

import csv
import io
from dataclasses import fields

from lab.trace.events import Committed, Proposed, StepTimed, Verified
from lab.trace.run import Run
from visualize.assets import PLOTLY, header, read, styles
from visualize.glossary import terms
from visualize.page_list import ABOUT
from visualize.reduce.frames import recorded
from visualize.static_page import WITHIN, component, document, script, stage

_TIMED = [field.name for field in fields(StepTimed)]
COLUMNS = (*_TIMED, "proposed", "verified", "accepted", "committed")
"""Columns of the CSV. First the fields of ``StepTimed``, under their own names: ``_ms`` are milliseconds, ``_bytes``
bytes, and all others but ``step_kind`` are counts. Then how many tokens the step ``proposed``, how many of those were
``verified`` and ``accepted``, and how many tokens the step ``committed`` to the output."""


def numbers(run: Run) -> str:
    """A run's numbers as CSV, one row per step. It contains none of the run's text, which a spreadsheet could take for
    a formula."""
    out = io.StringIO()
    table = csv.writer(out, lineterminator="\n")
    table.writerow(COLUMNS)
    counts = dict.fromkeys(COLUMNS[len(_TIMED) :], 0)
    for event in run.events:
        match event:
            case Proposed():
                counts["proposed"] += 1
            case Verified():
                counts["verified"] += 1
                counts["accepted"] += event.accepted
            case Committed():
                counts["committed"] += len(event.token_ids)
            case StepTimed():
                table.writerow([*(getattr(event, name) for name in _TIMED), *counts.values()])
                counts = dict.fromkeys(counts, 0)
    return out.getvalue()


def page(run: Run) -> str:
    """One HTML file with the run and its player; it needs no server and no network, and its policy allows none.

    Raises:
        RunFileError: the run contradicts itself.
    """
    about = ABOUT["Lab"]
    return document(
        "Decode Lab: a recorded run",
        about,
        f"<style>{styles('static/stage', 'static/film', 'export/exported', 'static/contrast')}</style>",
        f"""{header(about)}
<main id="stage">{read("static/stage.html")}</main>
<script type="application/json" id="run-transcript">{recorded(run, "recorded")}</script>
<script>{_inline(PLOTLY.read_text("utf-8"))}</script>
<script>
{_inline(script("static/header.js", "static/run_page.js"))}
{_inline(component("header", "static/header.js", {"terms": terms()}))}
{_inline(stage())}
mount("header", document.querySelector("header"));
mount("stage", document.querySelector("#stage"))(document.querySelector("#run-transcript").textContent);
</script>""",
        WITHIN,
    )


def _inline(code: str) -> str:
    """JavaScript that cannot end the script element it is embedded in."""
    return code.replace("</script", "<\\/script").replace("<!--", "<\\!--")


FORMATS = {
    "json": ("application/json", Run.to_json),
    "csv": ("text/csv", numbers),
    "html": ("text/html", page),
}
"""The formats a run can be downloaded in: the file's MIME type, and the function that writes it."""
