"""The glossary, ``docs/glossary.md``: the page that shows it and every tooltip read the same table."""

import functools
import re
from pathlib import Path

from visualize.markdown import to_html

SOURCE = Path(__file__).parents[1] / "docs" / "glossary.md"
ROW = re.compile(r"^\| (?P<names>.+?) \|(?: .+?)? \| (?P<about>.+?) \| (?P<lesson>\d+) \|$", re.MULTILINE)
"""A term: its names with commas between, vLLM's, the definition, and the number of the lesson that teaches it."""


@functools.cache
def terms() -> dict[str, tuple[str, int]]:
    """The definition, a sentence, and the lesson of every term by each of its names in lower case. "Draft tokens (γ)"
    has three: the whole, and what is outside and within the brackets."""
    found = {}
    for row in ROW.finditer(SOURCE.read_text("utf-8").partition("## The six")[0]):
        names = re.sub(r"[`$]", "", row["names"]).lower().split(", ")
        parts = [part for name in names for part in (name, *re.findall(r"[^()]*[^() ]", name))]
        about = f"{row['about'][0].upper()}{row['about'][1:]}."
        found |= {part.strip(): (about, int(row["lesson"])) for part in parts}
    return found


def key(label: str) -> str:
    """The name under which ``terms`` has a label of a page: that of "ITL p50 / p99" is "itl"."""
    return re.sub(r" p\d\d.*", "", label.lower())


def page() -> str:
    """HTML of the glossary. Lessons' numbers, the last cell of a row, are links."""
    cell = re.compile(r"<td>([\d, ]+)</td>(?=\s*</tr>)")
    link = functools.partial(re.sub, r"\d+", r'<a href="lessons?lesson=\g<0>">\g<0></a>')
    return cell.sub(lambda found: f"<td>{link(found[1])}</td>", to_html(SOURCE.read_text("utf-8")))
