"""The settings of the pages' events, and what all pages do when they are opened and when a control changes."""

import html
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import gradio as gr
from gradio.events import Dependency

from visualize.jobs.live_run import ProgressJob
from visualize.jobs.visitor_sessions import OnePerSession, VisitorSessions
from visualize.text import as_line
from visualize.url_settings import NO_SETTINGS, Form

QUIET: dict[str, Any] = {
    "show_progress": "hidden",
    "api_visibility": "private",
    "api_name": "page",  # so that no event takes a name of the functions that programs call
    "concurrency_limit": None,
}
"""Pages show progress themselves, programs have an interface of their own, and whoever has to wait does so in the
line."""
LATEST: dict[str, Any] = QUIET | {"trigger_mode": "always_last"}
"""For what depends on controls: one answer at a time and, if controls change meanwhile, one more for their final state.
By default Gradio drops that."""

REPEATED: dict[str, Any] = QUIET | {"trigger_mode": "multiple"}
"""For what is sent as often as a person does it: what stops something, or brings along what it is about. By default
Gradio drops an event while the last one of its kind is unanswered."""


def ready(opened: Dependency) -> None:
    """Mark the page as ready after the event that opens it."""
    opened.then(fn=None, js="() => { document.body.dataset.ready = 'yes' }")


def begins(asked: Dependency) -> None:
    """End the state that ``header.js`` began when Run was pressed: a moment after the server's answer, the page knows
    whether anything runs."""
    asked.then(fn=None, js="() => { setTimeout(() => document.body.classList.remove('begun'), 500) }")


def nothing(outputs: int) -> list[Any]:
    """An answer that changes none of so many outputs, as to the second click of two. Those of a generator that yields
    nothing at all are emptied by Gradio."""
    return [gr.skip()] * outputs


def follow(job: ProgressJob | None) -> Any:
    """The value of a component that reads a job's records from its channel (``recordReader`` in sse.js); none if there
    is no job, as at the second click of two."""
    return gr.skip() if job is None else as_line({"channel": job.id})


def stops(pages: gr.Blocks, pressed: Callable[..., Dependency], visitors: OnePerSession[Any] | VisitorSessions) -> None:
    """Stop what a visitor has in progress when they press Stop or leave. ``pressed``: the event of Stop."""

    def stop(request: gr.Request) -> None:
        visitors.stop(request.session_hash)

    def leave(request: gr.Request) -> None:
        visitors.leave(request.session_hash)

    pressed(stop, queue=False, **REPEATED)
    pages.unload(leave)


def warn(notices: Iterable[str], of: str = "link") -> None:
    """Say what a link, or what ``of`` names instead, asked for and did not get. Gradio takes a warning for markup, and
    here it may quote what anybody wrote."""
    for notice in notices:
        gr.Warning(html.escape(notice, quote=False), title=f"About this {of}")


def linked(opened: Callable[[Mapping[str, str]], tuple[Any, list[str]]]) -> Callable[[gr.Request], str]:
    """The event that opens a page of one component. ``opened`` reads its first record from a link, and what to say."""

    def answer(request: gr.Request) -> str:
        record, notices = opened(request.query_params)
        warn(notices)
        return as_line(record)

    return answer


def turned(controls: Iterable[Any]) -> list[Any]:
    """The events of controls that a person turns. A slider's number is put within its bounds, and its ↺ resets it,
    without an ``input``, so of sliders these are all changes."""
    return [control.change if isinstance(control, gr.Slider) else control.input for control in controls]


def keep_address(controls: Sequence[Any], form: Form) -> None:
    """Keep the page's address equal to the controls: it is rewritten whenever one of them changes."""
    may_be_empty = [name for name, one in form.settings.items() if one.may_be_empty]
    named = [json.dumps(part) for part in (form.names, form.defaults, may_be_empty, NO_SETTINGS)]
    script = f"(...values) => window.decodeLab?.link({', '.join(named)}, values)"
    gr.on([control.change for control in controls], fn=None, inputs=list(controls), js=script)
