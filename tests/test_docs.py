"""The documentation: generated blocks are up to date, links lead somewhere, examples run, pins agree."""

from __future__ import annotations

import re
from importlib.metadata import requires
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

from docs import generate
from lab import Run
from lab.memory.model_memory import known_models
from lab.registry import LISTED

ROOT = Path(__file__).parents[1]
PAGES = {path: path.read_text("utf-8") for path in (*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md")))}
README = PAGES[ROOT / "README.md"]
named = pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)


def example(path: str, about: str) -> str:
    """The Python example of a page that mentions ``about``."""
    [found] = [it for it in re.findall(r"```python\n(.+?)```", PAGES[ROOT / path], re.DOTALL) if about in it]
    return found


def test_generated_blocks_are_up_to_date_and_a_changed_figure_is_noticed(tmp_path, capsys):
    assert generate.main(["--check"]) == 0, capsys.readouterr().out
    page = tmp_path / "page.md"
    page.write_text("<!-- generated: kv-formats -->\nold\n<!-- end -->\n", "utf-8")
    assert "| int8 |" in generate.filled(page) != page.read_text("utf-8")


def anchors(path: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub derives them."""
    fenced = re.sub(r"^```.*?^```", "", path.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", fenced, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@named
def test_every_path_and_heading_exists_and_every_example_is_valid_python(path):
    for name, heading in re.findall(r"\]\((?!https?://)([^)#\s]*)(?:#([^)\s]+))?\)", PAGES[path]):
        to = (path.parent / name).resolve() if name else path
        assert to.exists(), name
        assert to.is_relative_to(ROOT), name
        assert not heading or heading in anchors(to), f"{name}#{heading}"
    for name in re.findall(r"`((?:app|lab|visualize|lessons|tests|docs)/[\w./]+)`", PAGES[path]):
        assert (ROOT / name).exists(), name
    for code in re.findall(r"```python\n(.+?)```", PAGES[path], re.DOTALL):
        compile(code, path.name, "exec")


def test_every_page_is_reached_from_the_readme():
    reached, waiting = set(), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in PAGES and page not in reached:
            reached.add(page)
            links = re.findall(r"\]\((?!https?://)([^)#\s]+)", PAGES[page])
            waiting += [(page.parent / link).resolve() for link in links]
    assert reached == set(PAGES)


def test_the_first_example_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(example("README.md", "load_engine"))
    run = Run.load("run.json")
    assert run.metrics.generated_tokens == 64 or run.reason == "eos"


def test_the_other_examples_print_what_they_say(capsys):
    code = example("docs/pages.md", "lab.memory")
    exec(code)
    assert capsys.readouterr().out.strip() == code.strip().rsplit("# ", 1)[1]
    exec(example("docs/vllm.md", "lab.vllm"))
    assert capsys.readouterr().out.startswith("vllm serve Qwen/Qwen3-8B ")


def test_the_header_for_a_space_is_complete():
    header = yaml.safe_load(README.split("---\n")[1])
    assert header["sdk"] == "gradio"
    assert (ROOT / header["app_file"]).exists()
    assert header["python_version"] in ("3.10", "3.12")  # what ZeroGPU offers
    assert len(header["short_description"]) <= 60
    listed = {known_models()[name].hub for pair in LISTED.items() for name in pair}
    assert set(header["preload_from_hub"]) == set(header["models"]) <= listed


def test_a_space_can_install_what_is_pinned():
    """A Space installs ``requirements.txt`` and ``gradio[oauth,mcp]`` of the header's version in one call of pip."""
    lines = (ROOT / "requirements.txt").read_text("utf-8").splitlines()
    pinned = dict(line.split("==") for line in lines if "==" in line)
    assert f"sdk_version: {pinned['gradio']}\n" in README
    checked = set()
    for it in map(Requirement, requires("gradio")):
        asked = not it.marker or any(it.marker.evaluate({"extra": extra}) for extra in ("mcp", "oauth"))
        if asked and it.name in pinned:
            assert it.specifier.contains(pinned[it.name]), it
            checked.add(it.name)
    assert checked > {"mcp", "pydantic"}
