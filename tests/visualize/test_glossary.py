"""Every term of the pages is in the one glossary, which is also a page, and every setting of the Lab has its lesson."""

from __future__ import annotations

import re

from lessons.course import course
from visualize.glossary import key, page, terms
from visualize.pages.pool import pool_metrics
from visualize.reduce import metric_cards
from visualize.run_settings import FORM
from visualize.states import STATES

NO_TERMS = {"finished", "prompt"}
"""Labels that mean what they say."""
NOT_TAUGHT = {"prompt", "pair", "target", "draft", "stop_token_ids", "parse_special", "token_ids", "max_tokens"}
NOT_TAUGHT |= {"system", "messages", "thinking", "raw"}
"""Settings that say what to run, not how."""
OTHER_NAMES = {"early_exit_layer": "early exit", "synthetic_acceptance_rate": "acceptance rate"}


def test_every_readout_state_and_setting_is_in_the_glossary() -> None:
    readouts = [one.label for one in (*metric_cards.READOUTS, *pool_metrics.READOUTS)]
    states = [state.label for state in STATES.values()]
    missing = {key(label) for label in (*readouts, *states)} - terms().keys() - NO_TERMS
    assert not missing
    settings = {name: OTHER_NAMES.get(name, key(one.label)) for name, one in FORM.settings.items()}
    assert {name for name, label in settings.items() if label not in terms()} == NOT_TAUGHT


def test_definitions_are_sentences_of_lessons_that_exist() -> None:
    for name, (about, lesson) in terms().items():
        assert re.fullmatch(r"[A-Z].*[^.]\.", about), name
        assert lesson in course(), name


def test_the_page_has_every_definition_and_links_to_the_lessons() -> None:
    html = page()
    assert html.count("<tr>") > len({about for about, _ in terms().values()})
    for number in {lesson for _, lesson in terms().values()}:
        assert f'<a href="lessons?lesson={number}">{number}</a>' in html
    assert "<math " in html
