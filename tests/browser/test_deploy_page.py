"""The Deploy page: settings carry over from other pages, a change updates the command, and it can be copied."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import parse_qs, urlsplit

from playwright.sync_api import expect

from tests.browser.conftest import OVERFLOW, Lab

Visit = Callable[..., Lab]
HOSTILE = "<img src=x onerror=window.pwned=1>${window.pwned=1}{{value}}"


def test_settings_carry_over_and_a_change_updates_the_command(visit: Visit) -> None:
    lab = visit()
    page = lab.page
    page.goto(f"{lab.server}/memory?model=llama-3.1-70b&kv_dtype=int8&batch=9")
    page.wait_for_selector("body[data-ready]")
    page.click("nav a:has-text('Deploy')")
    page.wait_for_selector(".serve:has-text('vllm serve meta-llama/Llama-3.1-70B')")
    said = {name: values[0] for name, values in parse_qs(urlsplit(page.url).query).items()}
    assert said == {"model": "llama-3.1-70b", "kv_dtype": "int8"}
    command = page.inner_text(".serve")
    assert "--kv-cache-dtype int8_per_token_head" in command
    assert "--tensor-parallel-size 2" in command
    assert page.inner_text(".splits .chosen th") == "2"
    verdicts = page.locator(".splits tbody td:last-child").all_inner_texts()
    assert verdicts == ["✗ too few", *["✓ enough"] * 3]
    assert page.locator("thead th:empty").count() == 0
    page.click("#speculative label:has-text('Lookup')")
    page.wait_for_selector('.serve:has-text(\'"method": "ngram"\')')
    page.wait_for_selector("#draft-model", state="hidden")
    page.wait_for_function("location.search.includes('speculative=ngram')")
    page.fill("#at-once input", "0")
    page.wait_for_selector(".sheet-say.problem:has-text('Sequences at once must be a whole number')")
    assert "ngram" in page.inner_text(".serve")  # greyed out, but still there
    assert page.inner_text(".sheet-say").endswith("What is shown is from before.")
    page.fill("#at-once input", "8")
    page.wait_for_selector(".sheet:not(.stale)")
    page.click("#model input")
    page.click("[role=option]:has-text('Another')")
    page.fill("#hub textarea, #hub input", HOSTILE)
    page.wait_for_function("text => document.querySelector('.serve').textContent.includes(text)", arg=HOSTILE)
    assert page.evaluate("window.pwned") is None
    assert page.query_selector(".sheet img") is None
    assert page.is_hidden(".splits")  # of a model that is not known
    assert page.evaluate(OVERFLOW) == [0, 0]
    page.wait_for_function("location.search.includes('hub=') && location.search.includes('at_once=8')")
    page.click("#block-size label:has-text('128')")  # the Lab has no such blocks
    page.wait_for_function("location.search.includes('block_size=128')")
    page.click("nav a:has-text('Lab')")
    page.wait_for_selector("body[data-ready]")
    said = {name: values[0] for name, values in parse_qs(urlsplit(page.url).query).items()}
    assert said == {"kv_dtype": "int8", "speculative": "ngram"}
    assert page.is_checked("#kv-dtype input[value=int8]")
    assert page.locator(".toast-wrap:has-text('left out')").count() == 0


def test_a_slider_that_is_put_right_or_reset_changes_the_command(visit: Visit) -> None:
    lab = visit()
    page = lab.page
    page.goto(f"{lab.server}/deploy?num_speculative_tokens=7")
    page.wait_for_selector("""'.serve:has-text('"num_speculative_tokens": 7')""".removeprefix("'"))
    page.wait_for_selector("body[data-ready]")
    page.click("#num-speculative-tokens button")
    page.wait_for_selector("""'.serve:has-text('"num_speculative_tokens": 4')""".removeprefix("'"))
    page.evaluate("document.querySelector('#set-aside input[type=number]').select()")
    page.keyboard.press("Tab")
    page.fill("#set-aside input[type=number]", "30")
    page.wait_for_selector(".serve:has-text('--gpu-memory-utilization 0.7')")


def test_a_command_can_be_copied_on_a_phone(visit: Visit) -> None:
    lab = visit(
        viewport={"width": 390, "height": 844}, is_mobile=True, permissions=["clipboard-read", "clipboard-write"]
    )
    page = lab.page
    page.goto(f"{lab.server}/deploy?speculative=off&kv_cache=0")
    page.wait_for_selector("body[data-ready]")
    page.wait_for_selector(".differs li:has-text('cannot be turned off')")
    page.click(".command .copy >> nth=0")
    page.wait_for_selector(".copy:has-text('Copied')")
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied == page.evaluate("document.querySelector('.serve').textContent")
    assert copied.startswith("vllm serve ")
    page.click(".command .copy >> nth=0")  # while it says so
    expect(page.locator(".command .copy >> nth=0")).to_have_text("Copy")
    assert page.evaluate(OVERFLOW)[0] == 0
    cut = page.eval_on_selector(".splits", "table => table.scrollWidth - table.clientWidth")
    assert cut == 0, "whether so many GPUs are enough is in view"
    rows = page.eval_on_selector_all(".splits tbody tr", "rows => rows.map((row) => row.offsetHeight)")
    assert max(rows) < 30, "each row is one line"


def test_an_impossible_tensor_parallel_split_is_reported(visit: Visit) -> None:
    lab = visit()
    page = lab.page
    page.goto(f"{lab.server}/deploy?model=qwen2.5-7b&tensor_parallel=8&speculative=off")
    page.wait_for_selector(".sheet-say.problem:has-text('cannot be split over 8 GPUs: choose 1, 2 or 4')")
    assert "Nothing: every setting has its flag" not in page.inner_text(".differs")
