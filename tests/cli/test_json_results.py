"""The answer to programs about an unfinished comparison. For finished ones see ``tests/api``."""

from __future__ import annotations

import json

from lab import EngineConfig, SamplingParams
from lab.cli.json_results import compare_result
from tests import tiny_models


def test_if_a_setting_has_no_run_nothing_is_compared() -> None:
    run = tiny_models.engine("llama").generate("The king", EngineConfig(), SamplingParams(max_tokens=4, seed=2))
    some = json.loads(json.dumps(compare_result({"default": [run], "paged=true": []}, None)))
    assert some["differences"] is None
    assert list(some["settings"]) == ["default"]
    assert (some["target"], some["draft"], some["sampling"]["seed"]) == (run.started.target, None, 2)
    none = compare_result({"default": [], "paged=true": []}, None)
    assert none["differences"] is none["target"] is none["sampling"] is None
    assert none["settings"] == {}
