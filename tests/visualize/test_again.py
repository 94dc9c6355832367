"""From a run to the settings that make it again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.config import ConfigError
from lab.engines import EMBEDDED, Pair
from lab.here import has_gpu
from lab.trace.events import RunStarted
from tests.visualize.conftest import script
from tests.visualize.test_against import VALUES
from visualize.run.again import again
from visualize.run.settings import LINK, MAX_PROMPT, NEUTRAL, Settings, senseless

STARTED = replace(script(Settings().engine_config(num_blocks=128))[0], target="stories", draft=None)


def started(settings: Settings) -> RunStarted:
    """How the embedded pair's run with these settings begins."""
    config = settings.engine_config(num_blocks=settings.pool_size // settings.block_size if settings.cache else None)
    draft = f"stories-{settings.pair}" if settings.speculation == "draft" else None
    sampling = vars(settings.sampling()) | {"seed": settings.seed or 0}
    return replace(STARTED, prompt=settings.prompt, config=vars(config), sampling=sampling, draft=draft)


@given(st.builds(Settings, **VALUES, distributions=st.booleans()))
def test_a_runs_settings_are_those_it_was_made_with(settings: Settings) -> None:
    settings = replace(settings, **{name: NEUTRAL[name] for name in senseless(settings)}, seed=settings.seed or 0)
    try:
        run = started(settings)
    except ConfigError:
        return
    found, notices = again(run, EMBEDDED)
    assert notices == []
    if not settings.cache:
        settings = replace(settings, pool_size=found.pool_size)  # there is no pool
    if settings.speculation != "draft":
        settings = replace(settings, pair=found.pair)  # nobody knows
    if not has_gpu():
        settings = replace(settings, cuda_graphs=found.cuda_graphs)
    assert found == settings


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"prompt": "x" * (MAX_PROMPT + 1)}, "The run's prompt was left out: it has more than 4,000 characters."),
        ({"config": {"num_speculative_tokens": 20}}, "The run's gamma was left out: it must be a whole number"),
        ({"target": "mine\u202e", "draft": "small"}, "The run's models cannot be chosen here: mine⟨RLO⟩ and small."),
    ],
)
def test_what_the_page_cannot_have_is_said(changed: dict[str, Any], said: str) -> None:
    changed = changed | {"config": STARTED.config | changed.get("config", {})}
    _, (notice,) = again(replace(STARTED, **changed), EMBEDDED)
    assert notice.startswith(said)


def test_a_file_that_predates_a_setting_has_its_default() -> None:
    config = {name: value for name, value in STARTED.config.items() if name != "prefill_attention"}
    assert again(replace(STARTED, config=config), EMBEDDED)[1] == []


def test_models_are_found_by_the_names_that_runs_call_them() -> None:
    pairs = {"a": Pair("A", "org/a", "org/b"), "b": Pair("B", "org/a", "org/c")}
    link = LINK.choosing(pair={"a": "A", "b": "B"})
    for draft, pair in ((None, "a"), ("org/b", "a"), ("org/c", "b")):
        found, notices = again(replace(STARTED, target="org/a", draft=draft), pairs, link)
        assert (found.pair, notices) == (pair, [])
