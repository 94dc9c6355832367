"""What the README and its reference (``docs``) state agrees with the recorded measurements and with the code."""

from __future__ import annotations

import ast
import json
import re
from importlib.metadata import requires
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

from lab import Run
from lab.memory.model_memory import known_models
from lab.registry import LISTED

ROOT = Path(__file__).parents[1]
PAGES = {path: path.read_text("utf-8") for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))}
README = PAGES[ROOT / "README.md"]
MEASURED = PAGES[ROOT / "docs/measured.md"]


def flat(text: str) -> str:
    """The text without line breaks."""
    return " ".join(text.split())


def record(bench: str) -> dict:
    return json.loads((ROOT / f"docs/bench/{bench}-cpu.json").read_text("utf-8"))


def ladder() -> dict[str, dict]:
    return {row["name"]: row for row in record("ladder")["ladder"]}


def test_the_ladder_is_the_recorded_one():
    result = record("ladder")
    recorded = {row["name"]: row for row in result["ladder"] + result["gammas"]}
    base = next(row["median"] for row in result["ladder"] if row["name"] == "cache")
    shown = re.findall(r"^\| ([^|]+) \| (\d+) \| (\d+) to (\d+) \| ([\d.]+) \|$", MEASURED, re.MULTILINE)
    assert {name for name, *_ in shown} == {row["name"] for row in result["ladder"]}
    for name, median, lower, upper, ratio in shown:
        row = recorded[name]
        assert [int(median), int(lower), int(upper)] == [round(row[key]) for key in ("median", "lower", "upper")]
        assert float(ratio) == round(row["median"] / base, 2)


def unseen() -> list[str]:
    result = record("ladder")
    plain, guessed, drawn, drawn_guessed = result["unseen"]

    def cell(row: dict) -> str:
        return f"{row['median']:.0f} ({row['lower']:.0f} to {row['upper']:.0f})"

    ratios = guessed["median"] / plain["median"], drawn_guessed["median"] / drawn["median"]
    return [
        f"| {result['unseen_texts']} unseen texts | greedy | temperature 0.8 |",
        f"| cache | {cell(plain)} | {cell(drawn)} |",
        f"| cache + speculation (gamma 4) | {cell(guessed)} | {cell(drawn_guessed)} |",
        "| ratio | {:.2f} | {:.2f} |".format(*ratios),
    ]


def test_the_cost_of_recording_is_within_the_spread_of_the_runs():
    told, untold = ladder()["cache"], ladder()["cache, nothing recorded"]
    assert f"{told['median']:.0f} tokens/s with every event recorded, {untold['median']:.0f} with" in flat(MEASURED)
    assert max(told["lower"], untold["lower"]) < min(told["upper"], untold["upper"])


def serving() -> list[str]:
    rows = []
    for name, row in record("serve")["throughput"].items():
        gaps = f"{row['itl_p50_ms']:.1f} / {row['itl_p99_ms']:.1f}"
        flying = f"{row['mean_sequences']:.1f}" if "mean_sequences" in row else ""
        rows.append(f"| {name} | {row['tokens_per_second']:.0f} | {row['ttft_p50_ms']:.0f} | {gaps} | {flying} |")
    return rows


def growth() -> list[str]:
    result = record("serve")

    def cell(size: str, temperature: str) -> str:
        off, on = (
            result["growth"][f"{size} at once, temperature {temperature}, speculation {way}"]["tokens_per_second"]
            for way in ("off", "draft")
        )
        return f"{off:.0f}, {on:.0f}: {on / off:.2f}"

    sizes = result["speculation"]["temperature 0"]["ratio_by_size"]
    return [f"| {size} | {cell(size, '0')} | {cell(size, '0.8')} |" for size in sizes]


def memory() -> list[str]:
    return [
        f"| {name} | {row['most_sequences']} | {row['mean_sequences']:.1f} | {row['wasted_share']:.0%} "
        f"| {row['preemptions']} | {row['tokens_per_second']:.0f} |"
        for name, row in record("serve")["memory"].items()
    ]


def formats() -> list[str]:
    rows = []
    for row in record("kv-error")["formats"]:
        off = f"{row['key_error']:.2%} | {row['value_error']:.2%}"
        rows.append(
            f"| {row['kv_dtype']} | {row['bytes_per_token']:,} | {off} | {row['perplexity']:.2f} "
            f"| {row['kl']['value']:.2g} |"
        )
    return rows


def steps() -> list[str]:
    return [
        f"| {row['name']} | {row['bytes'] / 1e6:.0f} | {row['flops'] / 1e6:.0f} | {row['ms']:.2f} | {row['share']:.0%} "
        f"| {row['bound']} | {row['step_ms']:.2f} |"
        for row in record("roofline")["rows"]
    ]


def beside() -> list[str]:
    """Each row's speed on one thread and on two, with its ratio to that of llama.cpp."""

    def cells(rows: list[dict]) -> list[str]:
        base = next(row["median"] for row in rows if row["name"] == "llama.cpp, bf16")
        return [
            f"{row['median']:.0f} | {row['lower']:.0f} to {row['upper']:.0f} | x {row['median'] / base:.2f}"
            for row in rows
        ]

    one, two = record("llama")["rows"], record("llama-2-threads")["rows"]
    return [
        f"| {row['name']} | {alone} | {both} |" for row, alone, both in zip(one, cells(one), cells(two), strict=True)
    ]


def watching() -> list[str]:
    result = record("page")
    figures, goals = result["figures"], result["goals"]

    def row(what: str, name: str, figure: str) -> str:
        return f"| {what} | {figure} | {goals.get(name, '')} |".replace("|  |", "| |")

    def player(what: str, slowed: str, way: str) -> str:
        name = f"player_{slowed}frames_per_second_{way}"
        speculation = "" if what.startswith("the same") else f", {'without' if way == 'off' else 'with'} speculation"
        return row(f"{what}{speculation}", name, f"{figures[name]:.0f}")

    def slower(what: str, way: str, goal: str) -> str:
        low, high = (100 * figures[f"slow_down{way}_{quartile}"] for quartile in ("q1", "q3"))
        return f"| {what} | {figures[f'slow_down{way}']:.0%} ({low:.0f} to {high:.0f}) |{goal} |"

    live, first = figures["live_frames_per_second"], figures["first_token_late_ms"]
    passes = {way: f"{figures[f'player_slowed_instants_per_second_{way}']:.0f}" for way in ("off", "draft")}
    most = float(goals["slow_down"].removeprefix("at most "))
    return [
        row("while a run goes on, pictures a second", "live_frames_per_second", f"{live:.1f}"),
        row("while a run goes on, kB a second, uncompressed", "", f"{figures['live_bytes_per_second'] / 1000:.0f}"),
        row("from the engine's first token to the page's, ms", "first_token_late_ms", f"{first:.0f}"),
        player("player at true speed, pictures a second", "", "off"),
        player("the same with speculation", "", "draft"),
        *(player(f"player at {passes[way]} passes a second, pictures a second", "slowed_", way) for way in passes),
        slower("watched, and drawn by a browser on the same two cores", "", f" at most {most:.0%}"),
        slower("watched, but no browser draws", "_told", ""),
        slower("not watched, beside a process that moves memory", "_moving_neighbour", ""),
    ]


def headlines() -> list[str]:
    """The few rows in the README itself."""
    crowd = record("serve")["speculation"]["temperature 0.8"]
    most, told = crowd["ratio_by_size"]["16"], crowd["told_by_size"]["16"]
    kept = {row["kv_dtype"]: row for row in record("kv-error")["formats"]}
    size, perplexity = (
        [f"{kept[name][of]:{how}}" for name in ("int8", "auto")]
        for of, how in (("bytes_per_token", ","), ("perplexity", ".2f"))
    )
    at_once = {
        of: [record("serve")["memory"][name][f"{of}_sequences"] for name in ("paged", "contiguous, the most")]
        for of in ("mean", "most")
    }
    speeds, llama = ladder(), {row["name"]: row["median"] for row in record("llama")["rows"]}
    plain, cached = speeds["no cache"]["median"], speeds["cache"]["median"]
    tokens, texts = record("ladder")["max_tokens"], record("ladder")["unseen_texts"]
    drawn, greedy = (
        record("ladder")["ratios"][f"speculation / cache, unseen texts, {how}"] for how in ("temperature 0.8", "greedy")
    )
    assert told == "loses"
    assert len(set(perplexity)) == 1
    int8, float32 = size
    bfloat16 = int(float32.replace(",", "")) // 2
    return [
        f"| KV cache, {tokens} tokens, greedy | {plain:.0f} tokens/s without, {cached:.0f} with |",
        f"| Speculation for one request, gamma 4, temperature 0.8, {texts} unseen texts | {drawn:.2f} times the cache "
        "alone |",
        f"| The same, greedy | {greedy:.2f} times |",
        f"| Speculation for 16 requests at once, gamma 4, temperature 0.8 | {most:.2f} times: it does not pay |",
        f"| INT8 cache | {int8} bytes a token instead of {float32} in float32 ({bfloat16:,} in bfloat16); perplexity "
        f"{perplexity[0]} in both |",
        "| Paged blocks, same memory, up to 384 tokens each "
        "| {:.1f} requests at once on average instead of {:.1f}, at most {} instead of {} |".format(
            *at_once["mean"], *at_once["most"]
        ),
        "| Beside llama.cpp in bfloat16, one thread, cache only "
        f"| {llama['cache'] / llama['llama.cpp, bf16']:.2f} times its tokens/s |",
    ]


@pytest.mark.parametrize(
    "table",
    [unseen, serving, growth, memory, formats, steps, beside, watching, headlines],
    ids=lambda table: table.__name__,
)
def test_every_row_is_the_recorded_one(table):
    page = README if table is headlines else MEASURED
    for row in table():
        assert row + "\n" in page


def test_the_machine_is_the_recorded_one():
    for bench in ("ladder", "roofline", "serve", "window", "llama-2-threads"):
        machine = record(bench)["machine"]
        torch = f"torch {machine['torch'].partition('+')[0]}"
        cores = f"on {machine['torch_threads']} CPU cores ({machine['processor']})"
        assert f"{cores}, {record(bench)['dtype'].replace(', ', ' with ')}, {torch}, transformers " in flat(MEASURED)
        assert (
            machine["transformers"]
            in flat(MEASURED).partition("(each record says which)")[0].split("transformers ")[-1]
        )
    assert record("ladder")["machine"]["processor"] in README
    assert record("load")["machine"] == "2 CPU cores (AMD EPYC)"
    assert record("workshop")["machine"]["processor"] == record("ladder")["machine"]["processor"]
    assert record("llama")["machine"]["processor"] == record("ladder")["machine"]["processor"]


def test_the_figures_in_sentences_are_the_recorded_ones():
    serve, windows, text = record("serve"), record("window")["ratios"], flat(MEASURED)
    window = windows["mix"]
    one_length = serve["ratios"]["16 of one length at once / one"]
    mixed = serve["ratios"]["batched paged / one after another"]
    left = serve["throughput"]["batched paged"]["mean_sequences"]
    assert f"give {one_length:.1f} times the tokens a second of one" in text
    assert f"only {mixed:.1f}, because on average only {left:.0f} are left" in text
    assert f"{window['to_best']:.2f} times the best fixed gamma ({window['best']})" in text
    assert f"{window['to_worst']:.2f} times the worst ({window['worst']})" in text
    easy, middling, hard = (f"{windows[kind]['to_best']:.2f}" for kind in ("easy", "middling", "hard"))
    assert f"{easy} on easy ones, {middling} on middling ones, and {hard} on hard ones" in text
    assert windows["hard"]["best"] == "off"
    recorded, added = record("logprobs"), record("logprobs")["added_ms"]
    assert f"Recording the {recorded['logprobs']} likeliest tokens around every verdict adds " in text
    assert f"adds {added['median']:.2f} ms to a round of {recorded['plain_ms']:.1f} ms (quartiles " in text
    assert f"(quartiles {round(added['lower'], 2) + 0.0:.2f} to {added['upper']:.2f})" in text  # + 0.0: no -0.00
    assert f"over {record('kv-error')['scored_tokens']:,} tokens of two books" in text
    passes = {row["name"]: row["ms"] for row in record("roofline")["rows"]}
    wide = passes["verify, 4 proposals"] / passes["decode"]
    engine = flat(PAGES[ROOT / "docs/engine.md"]).replace("[", "")
    assert f"a verify of five tokens takes about {wide:.1f} times as long" in engine


def test_the_memory_of_the_page_is_the_recorded_one():
    result, text = record("page"), flat(MEASURED)
    figures = result["figures"]
    nodes = figures["nodes_after_20"] - figures["nodes_after_3"]
    than = "more" if nodes > 0 else "fewer"
    assert f"the page has {abs(nodes)} DOM nodes {than} than after the 3rd" in text
    assert f"and takes {figures['heap_growth_mb']:.1f} MB of memory more" in text
    assert f"for {result['tokens']} tokens, when a headless browser" in text


def test_the_cost_of_a_workshop_is_the_recorded_one():
    result, text = record("workshop"), flat(MEASURED)
    medians = result["percent_of_a_core"]["medians"]
    assert f"moves ten times a second takes {medians['leading']:.1f}% of a core" in text
    assert f"{medians['followed']:.1f}% with {result['followers']} followers" in text
    assert f"nobody doing anything it is {medians['idle']:.1f}%" in text
    assert (result["hz"], result["messages_arrived"]) == (10, 1)


def test_the_figures_under_load_are_the_recorded_ones():
    result, text = record("load"), flat(MEASURED)
    assert result["crossed"] == []
    assert f"{result['clients']} callers in {result['minutes']:g} minutes got {result['answers']} answers" in text
    assert f"and {len(result['errors']) or 'no'} errors" in text
    assert f"The longest wait from the call to the first token was {result['waits_ms']['ratio']:.1f} times the" in text
    assert not any(result["left"].values())
    memory = result["memory_mb"]
    assert f"took {memory['after']:.0f} MB, where it took {memory['after_warm_up']:.0f} MB after" in text


@pytest.mark.parametrize(("name", "threads"), [("llama", 1), ("llama-2-threads", 2)])
def test_the_agreement_with_llama_cpp_is_the_recorded_one(name, threads):
    result, text = record(name), flat(MEASURED)
    assert result["machine"]["torch_threads"] == threads
    same = sum(length == result["max_tokens"] for length in result["alike"]["bf16"])
    assert f"the same {result['max_tokens']} tokens after {same} of {result['prompts']} prompts" in text


def test_the_agreement_with_vllm_is_the_recorded_one():
    result = record("vllm")
    rows, size = result["rows"], result["max_tokens"]
    texts = f"{sum(row['same_text'] for row in rows)} of {len(rows)}"
    rounds = f"{sum(row['alike'] for row in rows)} of {sum(len(row['ours']) for row in rows)} rounds"
    assert f"the same text for {texts} prompts, as many guesses kept in {rounds} |" in README
    how = f"the ladder's {len(rows)} prompts, greedy, {size} tokens each, gamma {result['gamma']}, in {result['dtype']}"
    assert f"{how}, {texts} texts are the same, and {rounds} kept as many guesses" in flat(MEASURED)
    assert {row["tokens"] for row in rows} == {size}


def test_the_memory_example_prints_what_it_says(capsys):
    [example] = re.findall(r"```python\n(from lab\.memory.+?)```", PAGES[ROOT / "docs/pages.md"], re.DOTALL)
    exec(example)
    assert capsys.readouterr().out.strip() == example.strip().rsplit("# ", 1)[1]


def test_the_vllm_example_prints_a_command(capsys):
    page = PAGES[ROOT / "docs/vllm.md"]
    [example] = re.findall(r"```python\n(from lab import EngineConfig\nfrom lab\.remote.+?)```", page, re.DOTALL)
    exec(example)
    said = capsys.readouterr().out
    assert said.startswith("vllm serve Qwen/Qwen3-8B ")
    assert "--tensor-parallel-size 2" in said
    assert "int8_per_token_head has a scale per token" in said


def test_the_command_for_a_gpu_names_all_tests_that_use_one_and_needs_no_pages():
    (paths,) = re.findall(r"`python -m pytest (tests/.+?)`", README)
    named = {test for path in paths.split() for test in [ROOT / path, *(ROOT / path).rglob("test_*.py")]}
    marks = "pytest.mark.gpu", 'DEVICE = torch.device("cuda" if'
    assert {
        test
        for test in (ROOT / "tests").rglob("test_*.py")
        if test != Path(__file__) and any(mark in test.read_text("utf-8") for mark in marks)
    } <= named
    needed = {name.split(".")[0] for name in imports(named | {ROOT / "tests/conftest.py"})}
    assert "torch" in needed
    assert not needed & {"app", "visualize", "gradio", "gradio_client", "playwright", "spaces"}


def imports(files: set[Path]) -> set[str]:
    """The modules that these tests import, and those that what they import of ``tests`` does. ``lab`` needs no pages:
    see ``test_rooms``."""
    found: set[str] = set()
    files = {file for file in files if file.suffix == ".py"}
    while files:
        nodes = [node for file in files for node in ast.walk(ast.parse(file.read_text("utf-8")))]
        names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
        for node in nodes:
            if isinstance(node, ast.ImportFrom):
                names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        new = names - found
        found |= new
        files = {file for name in new if (file := ROOT / f"{name.replace('.', '/')}.py").is_relative_to(ROOT / "tests")}
        files = {file for file in files if file.exists()}
    return found


def test_the_space_uses_the_pinned_gradio_and_can_install_what_is_pinned_beside_it():
    """In one call of pip, a Space installs ``requirements.txt`` and ``gradio[oauth,mcp]`` of the header's version."""
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


def test_the_header_for_the_space_is_complete():
    header = yaml.safe_load(README.split("---\n")[1])
    assert header["sdk"] == "gradio"
    assert header["header"] == "mini", "a page as high as the window needs the whole of it"
    assert (ROOT / header["app_file"]).exists()
    assert header["python_version"] in ("3.10", "3.12")  # what ZeroGPU offers
    assert len(header["short_description"]) <= 60
    assert header["tags"]
    listed = {known_models()[name].hub for pair in LISTED.items() for name in pair}
    assert set(header["preload_from_hub"]) == set(header["models"]) <= listed


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_every_path_and_heading_named_exists(path):
    text = PAGES[path]
    links = re.findall(r"\]\((?!https?://)([^)#\s]*)(?:#([^)\s]+))?\)", text)
    assert links
    for name, heading in links:
        to = (path.parent / name).resolve() if name else path
        assert to.exists(), name
        assert to.is_relative_to(ROOT), name
        assert not heading or heading in anchors(to), f"{name}#{heading}"
    for name in re.findall(r"^\| `([\w./]+)`", text, re.MULTILINE):
        assert (ROOT / name).exists(), name


def anchors(path: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub derives them."""
    fenced = re.sub(r"^```.*?^```", "", path.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", fenced, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_page_of_the_reference_is_linked_from_the_readme():
    assert {path.name for path in PAGES} >= {
        "pages.md",
        "server.md",
        "vllm.md",
        "programs.md",
        "engine.md",
        "export.md",
    }
    for path in PAGES:
        assert path.name == "README.md" or f"](docs/{path.name})" in README, path


def test_every_page_of_the_lab_is_listed():
    routes = re.findall(r'pages\.route\("(\w+)", "(/\w+)"', (ROOT / "app.py").read_text("utf-8"))
    assert len(routes) > 5
    for name, address in [("Lab", "/"), *routes]:
        assert re.search(rf"^\| \[{name}\]\([^)]+\) \| `{address}` \| ", README, re.MULTILINE), name


def test_every_package_is_in_the_map():
    rows = dict(re.findall(r"^\| `([\w./]+)` \| (.+) \|$", README, re.MULTILINE))
    for floor in ("lab", "visualize", "lessons"):
        rooms = [ROOT / floor, *(path for path in sorted((ROOT / floor).rglob("*")) if (path / "__init__.py").exists())]
        assert len(rooms) > 1
        for room in rooms:
            name, inside = f"{room.relative_to(ROOT).as_posix()}/", f"`{room.name}/`"
            assert name in rows or inside in rows[f"{room.parent.relative_to(ROOT).as_posix()}/"], name
    for room in ("lab", "lab/decode", "lab/kv", "lab/native", "lab/pair", "lab/memory", "lab/trace", "lab/remote"):
        for path in (ROOT / room).glob("*.[pch]*"):
            assert path.name == "__init__.py" or f"`{path.name}`" in rows[f"{room}/"], path


def test_the_first_example_runs(tmp_path, monkeypatch):
    [example] = re.findall(r"```python\n(.+?)```", README, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(example)
    run = Run.load("run.json")
    assert run.metrics.generated_tokens == 64 or run.reason == "eos"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_every_example_is_valid_python(path):
    for example in re.findall(r"```python\n(.+?)```", PAGES[path], re.DOTALL):
        compile(example, path.name, "exec")
