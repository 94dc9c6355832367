"""Numbers shown, and compared with the run before."""

from __future__ import annotations

from dataclasses import asdict

from lab.config import EngineConfig
from lab.trace.metrics import measure
from tests.visualize.conftest import CONFIGS, script
from visualize.readouts import DASH, Before, difference, labels, rows


def test_nothing_measured_is_a_dash() -> None:
    shown = rows(measure([]))
    assert shown.keys() == {label["key"] for label in labels()}
    assert {value for value, _, _ in shown.values()} == {DASH}


def test_numbers_agree_with_the_metrics() -> None:
    metrics = measure(script(CONFIGS["speculative"]))
    shown = rows(metrics)
    assert shown["speed"] == [f"{metrics.tokens_per_second:.0f}", "tok/s", ""]
    assert shown["pass"][0] == f"{metrics.mean_acceptance_length:.2f}"
    assert shown["accepted"][:2] == [f"{100 * metrics.draft_acceptance_rate:.0f}", "%"]
    assert shown["kv"][1] == "kB"


def test_plain_decoding_is_one_token_a_pass() -> None:
    shown = rows(measure(script(CONFIGS["plain"])))
    assert shown["pass"][0] == "1.00"
    assert shown["accepted"][0] == DASH


def test_the_run_before_stands_beside() -> None:
    plain, fast = (measure(script(CONFIGS[name])) for name in ("plain", "speculative"))
    shown = rows(fast, Before(asdict(EngineConfig()), plain))
    ratio = fast.tokens_per_second / plain.tokens_per_second
    assert shown["speed"][2] == f"was {plain.tokens_per_second:.0f} · ×{ratio:.2g}"
    assert (
        rows(fast, Before(asdict(EngineConfig()), plain), over=False)["speed"][2] == shown["speed"][2].split(" · ")[0]
    )
    assert shown["accepted"][2] == ""


def test_what_was_switched_is_named() -> None:
    before, now = asdict(EngineConfig()), asdict(EngineConfig(speculative="draft", kv_dtype="int8"))
    assert "INT8 KV off → on, speculation off → on" in difference(before, now)
    assert "Same engine settings" in difference(before, before)
