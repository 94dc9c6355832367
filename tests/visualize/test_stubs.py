"""Importing Gradio without its type stubs."""

from __future__ import annotations

import inspect
from pathlib import Path

import gradio as gr
import pytest
from gradio import component_meta

from lab import Run
from visualize.stubs import no_stubs


def test_gradio_makes_no_stub_of_a_component_whose_file_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    monkeypatch.setattr(component_meta, "create_pyi", lambda code, events: made.append(code) or code)
    with no_stubs():
        component_meta.create_or_modify_pyi(gr.Number, "Number", [])
        assert Path(inspect.getfile(Run)).name == "run.py", "of all other classes, it is"
    assert made == []
    assert Path(inspect.getfile(gr.Number)).name == "number.py"
