"""The claims, as checked on the machine that made the site."""

from collections.abc import Callable, Sequence
from typing import Any

from lab.claims import CLAIMS
from lab.claims.trial import Trial
from lab.engine.engine import Engine
from lab.errors import LabError
from visualize.assets import read
from visualize.export.pages import CHARTS, Page
from visualize.pages.claims.checks import setup, shown
from visualize.static_page import component
from visualize.text import as_line, visible

ABOUT = "Popular claims about KV caching and speculative decoding, tested on the machine of the recording."


def record(load: Callable[[str], Engine], names: Sequence[str], step: Callable[[str], None]) -> dict[str, Any]:
    """Check these claims. By id: numbers, chart and verdict, or the ``problem`` that prevented the check."""
    at = ""
    trial = Trial(load, report=lambda line: step(f"{at}: {line}"))
    found: dict[str, Any] = {}
    for place, name in enumerate(names, 1):
        at = f"claim {place} of {len(names)}, {name}"
        step(at)
        try:
            found[name] = shown(CLAIMS[name], CLAIMS[name].check(trial))
        except LabError as error:
            found[name] = {"problem": visible(str(error))}
    return found


def page(found: dict[str, Any], where: str) -> Page:
    """All claims, with the results of those that were checked. ``where``: a sentence that says on which machine."""
    return Page(
        path="claims.html",
        under="Claims",
        title="claims, checked",
        about=ABOUT,
        body=f'<main id="claims"><p class="where">{where}</p>{read("pages/claims/page.html")}</main>',
        scripts=(*CHARTS, "claims"),
        data={"recorded": as_line(found)},
    )


def files() -> dict[str, str]:
    """The script of the page."""
    return {"assets/claims.js": component("claims", "pages/claims/page.js", setup()) + read("export/claims.js")}
