"""Numbers shown, and compared with the run before."""

from __future__ import annotations

from dataclasses import asdict, replace

from lab.config import EngineConfig
from lab.trace.events import Prefilled
from lab.trace.metrics import measure
from tests.visualize.conftest import CONFIGS, script
from visualize.run.readouts import DASH, Before, described, difference, labels, rows
from visualize.run.settings import Settings

CONFIG = asdict(EngineConfig())


def test_nothing_measured_is_a_dash() -> None:
    shown = rows(measure([]), CONFIG)
    assert shown.keys() == {label["key"] for label in labels() if label["always"]}
    assert {value for value, _, _ in shown.values()} == {DASH}


def test_numbers_agree_with_the_metrics() -> None:
    metrics = measure(script(CONFIGS["speculative"]))
    shown = rows(metrics, CONFIG)
    assert shown["speed"] == [f"{metrics.tokens_per_second:.0f}", "tok/s", ""]
    assert shown["pass"][0] == f"{metrics.mean_acceptance_length:.2f}"
    assert shown["accepted"][:2] == [f"{100 * metrics.draft_acceptance_rate:.0f}", "%"]
    assert shown["kv"][1] == "kB"
    assert shown["limit"][:2] == [f"{100 * metrics.limit_share:.0f}", "%"]


def test_plain_decoding_is_one_token_a_pass() -> None:
    shown = rows(measure(script(CONFIGS["plain"])), CONFIG)
    assert shown["pass"][0] == "1.00"
    assert shown["accepted"][0] == DASH


def test_the_run_before_stands_beside() -> None:
    plain, fast = (measure(script(CONFIGS[name])) for name in ("plain", "speculative"))
    before = Before(CONFIG, plain)
    shown = rows(fast, CONFIG, before)
    ratio = fast.tokens_per_second / plain.tokens_per_second
    assert shown["speed"][2] == f"×{ratio:.2g} of {plain.tokens_per_second:.0f}"
    assert rows(fast, CONFIG, before, over=False)["speed"][2] == f"was {plain.tokens_per_second:.0f}"
    assert shown["accepted"][2] == ""


def test_large_numbers_change_their_unit_and_say_so_beside_the_run_before() -> None:
    metrics = measure(script(CONFIGS["plain"]))
    slow = replace(
        metrics,
        ttft_ms=1234.5,
        itl_p50_ms=99.96,
        itl_p99_ms=12_345.0,
        kv_used_bytes=999_600_000,
        kv_reserved_bytes=64_000_000_000,
        peak_memory_bytes=140_200_000_000,
    )
    shown = {name: row[:2] for name, row in rows(slow, CONFIG).items()}
    assert shown["first"] == ["1.23", "s"]
    assert shown["gaps"] == ["0.1 / 12.3", "s"]
    assert shown["kv"] == ["1 / 64", "GB"]
    assert shown["memory"] == ["140", "GB"]
    kv = {"kv_used_bytes": 999_600_000, "kv_reserved_bytes": 999_700_000}
    assert rows(replace(metrics, **kv), CONFIG)["kv"][:2] == ["1000 / 1000", "MB"]
    assert rows(metrics, CONFIG, Before(CONFIG, slow), over=False)["first"][2] == "was 1.23 s"


def test_what_was_switched_is_named() -> None:
    assert "Same engine settings" in difference(CONFIG, CONFIG)
    now = EngineConfig(
        kv_dtype="int4", paged=True, enable_prefix_caching=True, speculative="synthetic", adaptive_window=True
    )
    assert difference(CONFIG, asdict(now)) == (
        "Small: the run before. KV format Native → INT4, paged blocks off → on, prefix caching off → on, "
        "speculation Off → Synthetic, adaptive window off → on."
    )


def test_every_setting_of_the_page_has_a_word_when_it_is_switched() -> None:
    before = Settings().engine_config()
    for name in ("kv_cache", "paged", "enable_prefix_caching", "adaptive_window"):
        assert "Same" not in difference(asdict(before), asdict(before) | {name: not getattr(before, name)})
    for name in ("num_speculative_tokens", "early_exit_layer", "synthetic_acceptance_rate", "block_size"):
        assert "→ 77" in difference(asdict(before), asdict(before) | {name: 77})
    for name in ("cuda_graphs", "torch_compile"):
        assert "Same" not in difference(asdict(before), asdict(before) | {name: not getattr(before, name)})
    assert "kernels The lab's own → Torch" in difference(asdict(before), asdict(before) | {"kernels": "reference"})
    assert "prompt Auto → Flash" in difference(asdict(before), asdict(before) | {"prefill_attention": "flash"})
    assert "cache priority 0 → 5" in difference(asdict(before), asdict(before) | {"cache_priority": 5})
    assert "least recently used → lowest priority" in difference(
        asdict(before), asdict(before) | {"eviction": "priority"}
    )


def test_a_run_from_before_a_setting_was_there_has_its_default() -> None:
    older = {name: value for name, value in CONFIG.items() if name not in ("kernels", "cuda_graphs", "torch_compile")}
    assert "Same engine settings" in difference(older, CONFIG)
    assert described(older, {"temperature": 0.8, "seed": 7}) == described(CONFIG, {"temperature": 0.8, "seed": 7})


def test_what_was_found_is_shown_where_something_could_be() -> None:
    events = script(CONFIGS["paged"])
    assert "found" not in rows(measure(events), CONFIG)
    assert rows(measure(events), CONFIG | {"enable_prefix_caching": True})["found"] == ["0", "", ""]
    events = [replace(event, cached_tokens=48) if isinstance(event, Prefilled) else event for event in events]
    assert rows(measure(events), CONFIG)["found"][0] == "48"


def test_a_runs_settings_are_described_where_they_mattered() -> None:
    sampling = {"temperature": 0.8, "seed": 7}
    now = asdict(EngineConfig(paged=True, speculative="draft", num_speculative_tokens=6, early_exit_layer=4))
    assert described(now, sampling) == (
        "KV format Native, paged blocks on, speculation Draft, guesses a round 6, temperature 0.8, seed 7"
    )
    assert "layers that guess 4" in described(now | {"speculative": "early_exit"}, sampling)
    assert "guesses" not in described(now | {"speculative": "off"}, sampling)
    assert "KV cache off" in described(asdict(EngineConfig(kv_cache=False)), sampling)
