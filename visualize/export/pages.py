"""Parts that all pages of a site share: the header, the links to the others, and the files beside them."""

import html
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from visualize import assets, glossary
from visualize.assets import PLOTLY, read, styles
from visualize.static_page import BESIDE, component, document, script

NAV = {"Runs": "index.html", "Lessons": "index.html#lessons", "Claims": "claims.html"}
"""The header's links, relative to the site's folder."""
LOOK = (
    "static/stage",
    "static/film",
    "static/page",
    *(f"pages/{page}/page" for page in ("memory", "compare", "lessons", "claims")),
    "pages/lessons/figure",
    "export/site",
    "static/contrast",
)
MODULES = ("claims/page", *(f"lessons/{part}" for part in ("course", "figure", "question", "observe", "try")))
"""Those of the pages that a site has."""
CHARTS = (PLOTLY.stem, "site")
"""The first scripts, in ``assets/``, of every page that draws charts; the other pages need only "site". Nothing waits
for Plotly but charts."""
SILENT = (
    "This browser runs no JavaScript here. Runs, questions, charts and claims are drawn with it: allow it for these "
    "pages. They load nothing from elsewhere and send nothing."
)


@dataclass(frozen=True, kw_only=True)
class Page:
    """A page of the site.

    Attributes:
        path: in the site's folder. under: its name in ``NAV``.
        title, about: plain text. body: markup.
        scripts: in ``assets/``, in order. data: JSON without tags, by the id under which the scripts find it.
    """

    path: str
    under: str
    title: str
    about: str
    body: str
    scripts: tuple[str, ...] = ("site",)
    data: Mapping[str, str] = field(default_factory=dict)

    def html(self) -> str:
        """The whole page. All its addresses are relative."""
        up = "../" * self.path.count("/")
        links = "".join(
            f'<a href="{up}{address}"{" aria-current=page" if name == self.under else ""}>{name}</a>'
            for name, address in NAV.items()
        )
        parts = [
            assets.header(html.escape(self.about), f'<nav aria-label="Pages">{links}</nav>'),
            f'<noscript><p class="where">{SILENT}</p></noscript>',
            self.body,
            *(f'<script type="application/json" id="{id}">{text}</script>' for id, text in self.data.items()),
            *(
                f'<script src="{up}assets/{name}.js"{" async" if name == PLOTLY.stem else ""}></script>'
                for name in self.scripts
            ),
        ]
        head = f'<link rel="stylesheet" href="{up}assets/site.css">'
        return document(f"Decode Lab: {self.title}", self.about, head, "\n".join(parts), BESIDE)


def filled(template: str, **markup: str) -> str:
    """A template of this folder with each ``<!-- name -->`` replaced; what is inserted is not searched again."""
    return re.sub(r"<!-- (\w+) -->", lambda found: markup[found[1]], read(template))


def common_files() -> dict[str, str]:
    """Files that every page loads, by path: Plotly (its licence in the first lines) and the site's own."""
    own = [
        script("static/header.js", "static/run_page.js", *(f"pages/{module}.js" for module in MODULES)),
        component("header", "static/header.js", {"terms": glossary.terms()}),
        'mount("header", document.querySelector("header"));\n',
    ]
    return {
        "assets/plotly.min.js": PLOTLY.read_text("utf-8"),
        "assets/site.js": "\n".join(own),
        "assets/site.css": styles(*LOOK),
    }
