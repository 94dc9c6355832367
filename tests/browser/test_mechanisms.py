"""The engine's mechanisms, switched on with the page's controls and seen at work."""

from __future__ import annotations

from collections.abc import Callable

from tests.browser.conftest import Lab
from visualize.states import DRAFTERS

Visit = Callable[..., Lab]
TALE = (
    "Once upon a time there was a poor miller who had three sons, and when the old miller died, the eldest took the "
    "mill, the second took the ass, and the youngest had nothing but the cat. So the youngest son went to the king, and"
)


def test_a_repeated_prompt_is_found_in_the_prefix_cache(visit: Visit) -> None:
    lab = visit().open(prompt=f"Now hear this. {TALE}", max_tokens=80, speculative="off")  # no other test begins so
    lab.toggle("enable-prefix-caching")
    lab.run()
    lab.finish()
    first = lab.seen()
    assert first["numbers"]["found"] == "0"
    assert first["blocks"]["cached"] > 2
    assert "cached" in lab.page.inner_text("[data-chart=blocks] .caption")
    text = first["text"]

    lab.run()
    lab.finish()
    second = lab.seen()
    assert second["text"] == text
    # The run was over in a moment: its beginning is seen in the player.
    lab.page.keyboard.press("Home")
    lab.page.keyboard.press("ArrowRight")
    lab.wait_for_instant(1)
    said = lab.page.inner_text(".say")
    assert said.startswith("Found ")
    assert "tokens in the cache" in said
    lab.page.keyboard.press("ArrowRight")
    fills = "document.querySelector('[data-chart=blocks] .plot').data[4].marker.pattern.shape.includes('/')"
    lab.page.wait_for_function(fills)  # this run holds the cached blocks
    lab.page.keyboard.press("End")
    lab.page.keyboard.press("ArrowLeft")  # its blocks are live once more
    lab.page.wait_for_function("document.querySelector('[data-chart=blocks] .plot').data[1].y.length > 0")
    assert lab.seen()["blocks"]["stored"] > 2
    assert int(second["numbers"]["found"]) >= 32
    assert "with the same settings" in lab.page.inner_text(".compared")


def test_in_a_small_pool_cached_blocks_are_evicted(visit: Visit) -> None:
    lab = visit().open(prompt=TALE, max_tokens=160, speculative="off", enable_prefix_caching=1, num_blocks=16)
    lab.run()
    lab.finish()
    kept = lab.seen()["blocks"]["cached"]
    assert kept > 10
    lab.page.fill("#prompt textarea", "The king's youngest daughter went down to the well, and there she saw")
    lab.run()
    lab.finish()
    lab.page.keyboard.press("End")
    lab.page.keyboard.press("ArrowLeft")  # its blocks are live once more
    lab.page.wait_for_function(
        """kept => {
          const count = (name) => document.querySelector("[data-chart=blocks] .plot").data
            .find((trace) => trace.name === name).y.filter((y) => y !== null).length;
          return count("live") > 16 - kept && count("cached") < kept;
        }""",
        arg=kept,
    )


GUESSED = {
    ("ngram", "adaptive"): "Prompt lookup",
    ("synthetic", "adaptive"): "synthetic stand-in",
    ("early_exit", "fixed"): "Early exit",  # an adaptive window keeps none of its guesses
}
"""Drafter and window, and how the tip of an accepted guess names the drafter."""


def test_every_drafter_is_named_on_its_guesses_and_leaves_the_text_unchanged(visit: Visit) -> None:
    link = {"prompt": TALE, "max_tokens": 80, "temperature": 0, "speculative": "off", "adaptive_window": 1}
    lab, texts = visit().open(**link), {}
    for name, window in [*((name, "adaptive") for name in DRAFTERS), ("early_exit", "fixed")]:
        lab.choose("speculative", DRAFTERS[name].label)
        lab.page.wait_for_function(
            "name => (location.search.match(/speculative=(\\w+)/)?.[1] ?? 'draft') === name", arg=name
        )
        if window == "fixed":
            lab.toggle("adaptive-window")
            lab.page.wait_for_function("!location.search.includes('adaptive_window')")
        lab.run()
        lab.finish()
        end = lab.seen()
        assert end["say"].startswith("Finished")
        texts[name, window] = end["text"]
        notice = lab.page.inner_text(".notice")
        assert notice == ("synthetic: proposals cost nothing here" if name == "synthetic" else "")
        if told := GUESSED.get((name, window)):
            assert end["rounds"]["accepted"] == end["tokens"]["accepted"] > 0, name
            lab.page.locator(".token.accepted").first.hover()
            assert told in lab.page.inner_text(".tip")
    assert len(set(texts.values())) == 1, texts


def test_a_synthetic_acceptance_rate_is_the_one_measured(visit: Visit) -> None:
    lab, kept = visit().open(max_tokens=80, speculative="synthetic", synthetic_acceptance_rate=0), []
    for rate in (0, 1):
        lab.page.fill("#synthetic-acceptance-rate input[type=number]", str(rate))
        lab.page.keyboard.press("Tab")
        lab.page.wait_for_function(f"location.search.includes('synthetic_acceptance_rate={rate}')")
        lab.run()
        lab.finish()
        kept.append(float(lab.seen()["numbers"]["accepted"]))
    assert kept == [0, 100]


def test_fewer_bits_store_the_kv_cache_in_fewer_bytes(visit: Visit) -> None:
    lab = visit().open(max_tokens=40)
    lab.run()
    lab.finish()
    for before, fewer in (("Native", "INT8"), ("INT8", "INT4")):
        lab.choose("kv-dtype", fewer)
        lab.run()
        lab.finish()
        assert lab.ratio("kv") < 0.75
        assert f"KV format {before} → {fewer}" in lab.page.inner_text(".compared")


def test_without_a_cache_recomputed_tokens_replace_the_blocks_chart(visit: Visit) -> None:
    """On a phone, where one chart is shown at a time."""
    lab = visit(viewport={"width": 390, "height": 844}).open(
        kv_cache=0, chart="blocks", max_tokens=20, speculative="off"
    )
    shown = ".choose button:visible"
    assert lab.page.locator(shown).all_inner_texts() == ["Rounds", "Blocks", "Time"]
    lab.run()
    lab.finish()
    assert lab.page.locator(shown).all_inner_texts() == ["Rounds", "Recomputed", "Time"]
    assert lab.page.get_attribute(".choose [data-for=recomputed]", "aria-pressed") == "true"
    lab.page.wait_for_selector("[data-chart=recomputed] .plot .scatterlayer path", state="attached")
    assert lab.page.is_visible("[data-chart=recomputed]")
    lab.page.click(".choose [data-for=timing]")
    lab.toggle("kv-cache")
    lab.run()
    lab.finish()
    assert lab.page.locator(shown).all_inner_texts() == ["Rounds", "Blocks", "Time"]
    assert lab.page.is_visible("[data-chart=timing]"), "another chosen chart stays in view"
    lab.page.click(".choose [data-for=blocks]")
    assert lab.seen()["blocks"]["fill"] > 0
