"""Every page's settings: what links may set, what they may not, and what follows for the Lab's other controls."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qsl

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient

from lab.config import EngineConfig, SamplingParams
from lab.errors import ConfigError
from lab.kv_cache.sdpa_support import refuse_sdpa
from lab.models.devices import has_gpu
from lab.registry import Pair, named_pair
from lab.settings import ENGINE_DEFAULTS, KV_DTYPES, OLD_NAMES, SETTINGS, Setting
from tests.visualize.any_settings import LAB, values
from visualize import memory_inputs as memory
from visualize import pool_inputs as pool
from visualize import run_settings as lab
from visualize.assets import read
from visualize.charts import CHARTS
from visualize.middleware import PagesMiddleware
from visualize.pages.claims import checks
from visualize.pages.compare import configurations as compare
from visualize.pages.deploy import deployment as deploy
from visualize.pages.lab.controls import UNSURE_SEED, follow
from visualize.pages.server import page as server
from visualize.recorded_results import KV_ERROR, LOGPROBS, kv_error, kv_quality, logprobs_cost
from visualize.run_settings import FORM, OTHER, Settings, from_link, unusable, with_pairs, without_unusable
from visualize.url_settings import Form, as_text

FORMS = {page.__name__: page.FORM for page in (lab, pool, compare, memory, deploy, server, checks)}
INPUTS = {
    lab: Settings,
    pool: pool.PoolInputs,
    compare: compare.CompareInputs,
    memory: memory.MemoryInputs,
    deploy: deploy.DeployInputs,
}


def test_every_setting_of_the_engine_has_one_entry() -> None:
    assert ENGINE_DEFAULTS.keys() <= SETTINGS.keys()
    for one in SETTINGS.values():
        assert one.label
        assert one.group is None or one.name in FORM.names
        for need in one.needs:
            names = list(SETTINGS)
            machine = {"gpu", "zerogpu"}
            assert all(of in machine or names.index(of) < names.index(one.name) for of in need.of), "needed ones first"


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@given(st.data())
def test_a_link_round_trips(form: Form, data: st.DataObject) -> None:
    given = {name: data.draw(values(one), label=name) for name, one in form.settings.items()}
    link = dict(parse_qsl(form.query(given), keep_blank_values=True))
    found, notices = form.read(link)
    assert (form.defaults | found, notices) == (given, [])
    form.check(given)


def bad(one: Setting) -> tuple[str, ...]:
    """Values that a link may not give a setting."""
    if one.kind == "number":
        low, high = one.bounds
        return (str(low - 1), str(high + 1), "nan", "inf", "1e999", "<script>", "1" * 5000, "4.5" if one.whole else "x")
    if one.kind == "text":
        return ("x" * (one.most_characters + 1),)
    return ("perhaps", "<script>", "../../etc/passwd", "2.5")


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_a_bad_value_is_left_out_and_named(form: Form) -> None:
    for name, one in form.settings.items():
        for value in bad(one):
            found, notices = form.read({name: value, "utm_source": "x"})
            assert found == {}, (name, value)
            assert len(notices) == 1
            assert name in notices[0]
            assert "x" * 100 not in notices[0]
    usual = dict.fromkeys(("run", "speed", "__theme", "utm_source"), "1")
    assert form.read(usual | {f"n{i}": "1" for i in range(9)}) == (
        {},
        ["The link names what this page has no setting for: n0, n1, n2, n3, n4, …."],
    )


def test_a_view_that_no_page_has_is_named_and_those_that_pages_have_are_not() -> None:
    form, options = Form(()), re.compile(r'<option value="([^"]+)"')
    seen = {"speed": options.findall(read("static/player.html") + read("static/race.html")), "chart": [*CHARTS]}
    seen |= {"colour": options.findall(read("static/stage.html").split('class="tint"')[1].split("</select>")[0])}
    seen |= {"step": ["start", "3", "15.1"], "guess": ["3.1"], "at": ["12.5"], "face": ["theory"], "run": ["1"]}
    for name, known in seen.items():
        assert known
        for value in known:
            assert form.read({name: value}) == ({}, []), value
        for value in ("bananas", "-1", "<script>", "x" * 5000):
            (notice,) = form.read({name: value})[1]
            assert name in notice
            assert "x" * 100 not in notice


@pytest.mark.parametrize("page", INPUTS, ids=lambda page: page.__name__)
def test_numbers_are_read_as_a_browser_sends_them_and_checked(page: Any) -> None:
    """A whole number may come as a float, and an emptied one as None."""
    form, inputs = page.FORM, INPUTS[page]
    as_floats = [float(v) if type(v) is int else list(v) if isinstance(v, tuple) else v for v in form.defaults.values()]
    assert inputs(**form.from_controls(as_floats)) == inputs()
    for name, one in form.settings.items():
        emptied = form.from_controls([None if it == name else value for it, value in form.defaults.items()])
        assert emptied[name] == (None if one.may_be_empty else one.default)
        for value in (math.nan, math.inf, "many", [], True, 2.5e9 + 0.5) if one.bounds else ():
            with pytest.raises(ConfigError) as refused:
                form.check(form.defaults | {name: value})
            assert one.label in str(refused.value)


def test_bounds_are_within_the_engines() -> None:
    for name, one in FORM.settings.items():
        for value in one.bounds or one.options:
            settings = without_unusable(Settings(**{name: value}))
            settings.engine_config()
            settings.sampling()
    assert (Settings().engine_config(), Settings().sampling()) == (
        EngineConfig(paged=True, speculative="draft", early_exit_layer=4),
        SamplingParams(temperature=0.8, seed=7, max_tokens=160, top_tokens=5),
    )


@given(st.fixed_dictionaries(LAB))
def test_combinations_without_effect_are_corrected_and_named(given: dict[str, Any]) -> None:
    settings, notices = from_link({name: as_text(value) for name, value in given.items()})
    config = settings.engine_config(settings.num_blocks)  # valid, whatever the link said
    out = unusable(Settings(**given))
    assert vars(settings) == given | {name: SETTINGS[name].off for name in out}
    alone = sum(bool(given[name]) for name in ("target", "draft")) if given["pair"] != OTHER else 0
    assert len(notices) == alone + sum(given[name] != SETTINGS[name].off for name in out)
    assert all(
        f"The link's {name} was left out: it needs " in "".join(notices)
        for name in out
        if given[name] != SETTINGS[name].off
    )
    for name, value in vars(config).items():
        if name in FORM.names and name != "cuda_graphs":
            assert value == getattr(settings, name)
    assert config.cuda_graphs == (settings.cuda_graphs or not has_gpu())
    assert (
        vars(settings.sampling()).items() >= {name: getattr(settings, name) for name in ("top_p", "logprobs")}.items()
    )


@pytest.mark.parametrize(
    ("gpu", "link", "left"),
    [
        (False, {"cuda_graphs": "1"}, {"cuda_graphs": "needs a GPU"}),
        (False, {"torch_compile": "1"}, {"torch_compile": "needs PyTorch kernels"}),
        (False, {"torch_compile": "1", "kernels": "reference"}, {}),
        (True, {"torch_compile": "1", "cuda_graphs": "1"}, {}),
        (True, {"cuda_graphs": "1", "kernels": "reference"}, {"cuda_graphs": "needs the KV cache and custom kernels"}),
    ],
)
def test_what_this_machine_cannot_do_is_left_out(
    monkeypatch: pytest.MonkeyPatch, gpu: bool, link: dict[str, str], left: dict[str, str]
) -> None:
    monkeypatch.setattr(lab, "has_gpu", lambda: gpu)
    settings, notices = from_link({"cuda_graphs": "0"} | link)
    assert len(notices) == len(left)
    for (name, reason), notice in zip(left.items(), notices, strict=True):
        assert f"The link's {name} was left out: it {reason}" in notice
        assert getattr(settings, name) is False
    config = settings.engine_config()
    assert config.torch_compile == ("torch_compile" in link and not left)
    assert config.kernels == link.get("kernels", "auto")
    if not gpu:
        assert config.cuda_graphs  # the engine's default was not switched off


def test_only_attention_kernels_that_run_here_are_offered() -> None:
    offered = FORM["prefill_attention"].options
    for choice in offered:
        if not has_gpu():
            refuse_sdpa(choice, torch.device("cpu"), torch.float32, 64)
    assert {"auto", "math"} <= offered.keys()


def test_without_a_draft_ngram_lookup_drafts_unless_the_link_says_how() -> None:
    alone, family = Pair("alone", "a/target"), Pair("family", "a/target", "a/draft")
    pairs = {"matched": alone, "family": family}
    form = with_pairs(FORM, {name: pair.label for name, pair in pairs.items()} | {OTHER: "Custom"})
    assert from_link({}, form, pairs) == (Settings(speculative="ngram"), [])
    assert from_link({"speculative": "off"}, form, pairs)[0].speculative == "off"
    for pair in ("family", OTHER):
        assert from_link({"pair": pair}, form, pairs)[0].speculative == "draft"


def test_a_link_may_name_only_pairs_that_the_server_has() -> None:
    form = with_pairs(FORM, {"matched": "Matched", OTHER: "Custom"})
    assert from_link({"pair": OTHER, "target": "a/b"}, form) == (Settings(pair=OTHER, target="a/b"), [])
    for name in ("mismatched", OTHER):
        settings, [notice] = from_link({"pair": name}, with_pairs(FORM, {"matched": "Matched"}))
        assert settings == Settings()
        assert notice == "The link's pair was left out: it must be one of matched."


def test_named_models_are_used_only_if_own_ones_are_chosen() -> None:
    assert Settings(target="ignored/model").models() == "matched"
    assert Settings(pair=OTHER, target=" a/b ", draft="c/d").models() == named_pair("a/b", "c/d")
    with pytest.raises(ConfigError, match="Name a target model"):
        Settings(pair=OTHER).models()
    alone = Settings(pair=OTHER, target="a/b")
    with pytest.raises(ConfigError, match="draft"):  # before the target loads
        alone.models()
    assert replace(alone, speculative="ngram").models() == named_pair("a/b", "")
    assert Settings(pair=OTHER, draft="c/d").models() == named_pair("", "c/d"), "a draft for the embedded target"


@given(st.fixed_dictionaries(LAB), st.booleans())
def test_a_switch_disables_what_has_no_effect_and_gives_chosen_values_back(given: dict[str, Any], cache: bool) -> None:
    wanted = Settings(**given)
    updates, put_out = follow(replace(wanted, kv_cache=cache), {})
    shown = replace(wanted, kv_cache=cache, **{name: it["value"] for name, it in updates.items() if "value" in it})
    assert shown == without_unusable(replace(wanted, kv_cache=cache))
    assert put_out == {name: getattr(wanted, name) for name in unusable(replace(wanted, kv_cache=cache))}
    assert all(not updates[name]["interactive"] and updates[name]["info"].startswith("Needs ") for name in put_out)
    assert updates["num_speculative_tokens"]["interactive"] == (wanted.speculative != "off")
    assert (updates["early_exit_layer"]["visible"] is True) == (wanted.speculative == "early_exit")
    assert (updates["target"]["visible"] is True) == (wanted.pair == OTHER)
    updates, still = follow(replace(shown, kv_cache=wanted.kv_cache), put_out)
    back = replace(shown, **{name: it["value"] for name, it in updates.items() if "value" in it})
    assert replace(back, **still, kv_cache=wanted.kv_cache) == wanted, "nothing that was chosen is lost"
    unsure = wanted.adaptive_window and wanted.speculative != "off"
    assert (updates["seed"]["info"] == UNSURE_SEED) == unsure, "measured times decide how many draws a round uses"


def test_recorded_costs_are_shown_for_the_models_they_were_measured_with() -> None:
    record = json.loads(KV_ERROR.read_text("utf-8"))
    recorded = record["formats"]
    assert kv_error("auto") == ""
    for row, shown in zip([*recorded, *record["exempt"]["formats"]], kv_quality(), strict=True):
        assert shown[0].split(",")[0] == KV_DTYPES[row["kv_dtype"]]
        assert shown[1] == f"{row['bytes_per_token']:,}"
        ends = [100 * (row["perplexity_ratio"][end] - 1) for end in ("value", "low", "high")]
        assert row["kv_dtype"] == "auto" or shown[2] == "{:+.2f}% ({:.2f} to {:.2f})".format(*ends)
    for row in recorded[1:]:
        fewer = 1 - recorded[0]["perplexity"] / row["perplexity"]  # perplexity is 1 / the tokens' mean probability
        assert f"{fewer:.2%}" in kv_error(row["kv_dtype"])
        for pair, said in (("matched", kv_error(row["kv_dtype"])), (OTHER, SETTINGS["kv_dtype"].help)):
            updates, _ = follow(Settings(kv_dtype=row["kv_dtype"], pair=pair), {})
            assert updates["kv_dtype"]["info"] == said
    cost = json.loads(LOGPROBS.read_text("utf-8"))
    assert cost["logprobs"] in FORM["logprobs"].options
    assert logprobs_cost() == f"{cost['added_ms']['median'] / cost['plain_ms']:+.0%}"
    for pair, known in (("matched", True), (OTHER, False)):
        updates, _ = follow(Settings(pair=pair), {})
        assert (logprobs_cost().lstrip("+") in updates["logprobs"]["info"]) == known


@pytest.mark.parametrize(
    ("pair", "chosen", "offered"),
    [("matched", "draft", False), ("qwen3-8b", "draft", False), (OTHER, "draft", True), ("matched", "mtp", True)],
)
def test_an_mtp_head_is_offered_for_models_that_may_bring_one(pair: str, chosen: str, offered: bool) -> None:
    """A link can ask for it with any models: then it is shown, and the run says what is wrong."""
    updates, _ = follow(Settings(pair=pair, speculative=chosen), {})
    assert ("mtp" in dict(map(reversed, updates["speculative"]["choices"]))) == offered


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("gamma=6&kv_format=int8&run=1&at=30", {"num_speculative_tokens": "6", "kv_dtype": "int8", "run": "1"}),
        ("cache=0&speculation=off&prefix_caching=1", {"kv_cache": "0", "speculative": "off"}),
        ("synthetic_rate=.5&distributions=1", {"synthetic_acceptance_rate": ".5", "logprobs": "5"}),
        ("pool_size=512&block_size=8", {"num_blocks": "64", "block_size": "8"}),
        ("pool_size=512", {"num_blocks": "32"}),
        ("pool_size=%FF&block_size=0&distributions=", {"logprobs": ""}),
        ("pool_blocks=21&speculation=draft", {"num_blocks": "21", "speculative": "draft"}),
        ("gamma=6&num_speculative_tokens=2", {"num_speculative_tokens": "2"}),
    ],
)
def test_an_old_link_is_redirected_to_the_names_of_now(old: str, new: dict[str, str]) -> None:
    pages = TestClient(PagesMiddleware(PlainTextResponse(""), {}), follow_redirects=False)
    answer = pages.get(f"/compare?{old}")
    where = answer.headers["location"]
    query = dict(parse_qsl(where.removeprefix("?"), keep_blank_values=True))
    assert (answer.status_code, query.keys() & OLD_NAMES.keys()) == (307, set())
    assert query.items() >= new.items()
    assert pages.get(f"/compare{where}").status_code == 200
    assert pages.get(f"/gradio_api/info?{old}").status_code == 200
