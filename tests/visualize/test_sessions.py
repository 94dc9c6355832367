"""Gradio's state for a session costs little and is the same as Gradio's own."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import gradio as gr
import pytest
from gradio.blocks import BlocksConfig
from gradio.state_holder import SessionState

import app
from lab.registry import Engines
from visualize.gradio_sessions import keep_no_values, share_configurations
from visualize.jobs.job_queue import JobQueue


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The labels of the components whose configuration is computed. Restores Gradio's own functions afterwards."""
    labels: list[str] = []
    get_config = gr.components.Component.get_config

    def told(self: Any, *args: Any) -> dict[str, Any]:
        labels.append(self.label)
        return get_config(self, *args)

    monkeypatch.setattr(BlocksConfig, "config_for_block", staticmethod(BlocksConfig.config_for_block))
    monkeypatch.setattr(SessionState, "_update_value_in_config", SessionState._update_value_in_config)
    monkeypatch.setattr(gr.components.Component, "get_config", told)
    return labels


def test_a_session_has_gradios_configurations_without_computing_them_again(asked: list[str]) -> None:
    with gr.Blocks() as pages:
        with gr.Row():
            number = gr.Number(3, label="number", elem_id="n")
        gr.Textbox(None, label="text")
        gr.State(5)
    expected = SessionState(pages).config_values
    share_configurations(pages)
    assert SessionState(pages).config_values == expected
    asked.clear()
    first, second = SessionState(pages), SessionState(pages)
    assert asked == []
    assert first.config_values == second.config_values == expected
    second[number._id] = gr.Number(9, label="another", render=False)
    second._update_config(number._id)
    assert second.config_values[number._id]["props"]["value"] == 9
    assert asked == ["another"]
    assert SessionState(pages).config_values == expected
    own = weakref.ref(second[number._id])
    del second
    gc.collect()
    assert own() is None, "nothing of a session is kept when it has ended"


def test_what_was_sent_to_a_session_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that somebody opened is megabytes, and Gradio keeps 500 sessions that have ended."""
    monkeypatch.setattr(SessionState, "_update_value_in_config", SessionState._update_value_in_config)
    keep_no_values()
    with gr.Blocks() as pages:
        shown = gr.HTML("")
        gr.Button().click(lambda: "x" * 1000, outputs=shown)
        gr.Button().click(lambda: gr.update(value="x" * 1000), outputs=shown)
    session = SessionState(pages)
    for event in pages.fns:
        answer = asyncio.run(pages.process_api(event, [], session))
        assert "xxx" in repr(answer["data"])
    assert shown._id in session.config_values
    assert "xxx" not in repr([session.config_values, session.state_data])


def test_the_labs_own_pages_share_their_configurations(asked: list[str]) -> None:
    engines = Engines()
    pages = app.build(engines, engines, JobQueue(), told={})
    assert pages.app is None, "an application is made once, when the pages are served"
    SessionState(pages)
    asked.clear()
    session = SessionState(pages)
    assert asked == []
    shown = next(iter(session.config_values))
    session._update_value_in_config(shown, "megabytes of a run")
    assert "megabytes of a run" not in repr(session.config_values[shown])
