"""The Lab: controls on the left, the stage on the right, and what connects them."""

import functools
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import gradio as gr

from lab.registry import Pair
from lab.trace.run import Run
from visualize import page_header as header
from visualize import stage
from visualize.assets import TITLE
from visualize.compare_link import against
from visualize.forms import component
from visualize.gradio_events import LATEST, QUIET, REPEATED, begins, keep_address, nothing, ready, warn
from visualize.jobs.job_queue import JobQueue, Load
from visualize.jobs.live_run import LiveRun
from visualize.jobs.run_store import RunStore
from visualize.jobs.visitor_sessions import VisitorSessions
from visualize.pages.lab import controls, conversation
from visualize.pages.lab.opening import opening
from visualize.recorded_results import runs
from visualize.reduce.settings_from_run import settings_from_run
from visualize.run_settings import FORM, OTHER, Settings, from_link, unusable, with_pairs, without_unusable
from visualize.workshop import Workshop

KEPT = "(text) => window.decodeLab.kept('messages', text)"
"""What was too long for the address (static/address.js)."""
SAME = ("prompt", "token_ids", "seed", "system", "messages", "thinking", "raw")
"""What two runs side by side have in common (static/side_by_side.js)."""


def build(
    load: Load, queue: JobQueue, pairs: Mapping[str, Pair], *, any_pair: bool, workshop: Workshop | None = None
) -> gr.Blocks:
    """The page. ``load`` gives it an engine for each of ``pairs`` by its name, or with ``any_pair`` for any models that
    a visitor names. Its runs wait in ``queue``. In a ``workshop`` it can follow the presenter's page, or be that page.
    """
    labels = {name: pair.label for name, pair in pairs.items()}
    store = workshop.store if workshop else RunStore()
    form = with_pairs(FORM, labels | ({OTHER: "Custom…"} if any_pair else {}))
    visitors = VisitorSessions(store)

    def run(request: gr.Request, *values: Any) -> str:
        settings = without_unusable(Settings.of(values))  # what follows from a switch may be under way
        begin = functools.partial(LiveRun, queue, load, settings)
        return visitors.begin(request.session_hash, begin, against=compared(settings)) or gr.skip()

    def compared(settings: Settings) -> str:
        """The link to a comparison, which takes no chats."""
        return (
            ""
            if conversation.talks(settings, conversation.template_of(settings, pairs, any_pair))
            else against(settings)
        )

    def answered(given: gr.EventData, *values: Any) -> list[Any]:
        """The conversation with the answer of the run that has ended, an empty message, and the templated prompt."""
        events = store.events(str(getattr(given, "run", "")))
        if not events:
            return nothing(3)
        done, settings = Run(events), Settings.of(values)
        longer = conversation.after(settings, done)
        return [longer.messages, longer.prompt, conversation.templated(done)] if longer else nothing(3)

    def stop(request: gr.Request) -> None:
        visitors.stop(request.session_hash)

    def reopened(path: str, request: gr.Request) -> str:
        transcript = visitors.reopen(request.session_hash, Path(path))
        if workshop:
            workshop.lead.opened(request.session_hash, transcript)
        return transcript

    def replayed(name: str, request: gr.Request) -> list[Any]:
        """The stage, and the list as before it was used: the same run can be chosen again."""
        file = None if visitors.busy(request.session_hash) else runs().get(str(name))
        return [reopened(str(file), request) if file else gr.skip(), ""]

    def take_away(wanted: list[str]) -> dict[str, str]:
        return store.take_away(wanted)

    def use(given: gr.EventData) -> list[Any]:
        """The controls as those of the run on the stage, and the folds."""
        started = next(iter(store.events(str(getattr(given, "run", "")))), None)
        if started is None:
            raise gr.Error("The server no longer has this run. If you have its file, open it.", print_exception=False)
        settings, notices = settings_from_run(started, pairs, form)
        warn(notices, "run")
        asked = set(FORM.names) - unusable(settings).keys()
        return [*panel.widgets.unfolded(asked, vars(settings)), *controls.show(settings)]

    def twice(given: gr.EventData, request: gr.Request, *values: Any) -> str:
        """The run on the stage once more: with the settings on the left, if they were ``changed`` since, else without
        speculation or, if it had none, with it."""
        started = next(iter(store.events(str(getattr(given, "run", "")))), None)
        if started is None:
            raise gr.Error("The server no longer has this run. Run it again first.", print_exception=False)
        settings, _ = settings_from_run(started, pairs, form)
        has_draft = bool(settings.draft) if settings.pair == OTHER else pairs[settings.pair].has_draft
        drafter = "draft" if has_draft else "ngram"
        other = without_unusable(replace(settings, speculative=drafter if settings.speculative == "off" else "off"))
        if getattr(given, "changed", None) is True:
            same = {name: getattr(settings, name) for name in SAME}
            other = without_unusable(replace(Settings.of(values), **same))
        begin = functools.partial(LiveRun, queue, load, other)
        return visitors.begin(request.session_hash, begin, against=compared(other)) or gr.skip()

    def leave(request: gr.Request) -> None:
        visitors.leave(request.session_hash)
        if workshop:
            workshop.lead.left(request.session_hash)

    def opened(request: gr.Request) -> list[Any]:
        settings, notices = from_link(request.query_params, form, pairs)
        if settings.pair == OTHER and request.query_params.get("run") == "1":  # static/header.js does not press Run
            notices = [*notices, "This link names models of its own: press Run to load them."]
        warn(notices)
        fresh = not request.query_params and settings.paged
        if fresh and conversation.talks(settings, conversation.template_of(settings, pairs, any_pair)):
            settings = replace(settings, enable_prefix_caching=True)
        return [*panel.widgets.unfolded(request.query_params, vars(settings)), *controls.show(settings)]

    with gr.Blocks(title=TITLE, fill_width=True, analytics_enabled=False) as page:
        header.build("Lab")
        if workshop:
            component("pages/workshop/workshop_bar", {}, elem_id="workshop")
        with gr.Row(elem_id="lab", elem_classes=["staged", "picture-first"]):
            with gr.Column(elem_id="controls"):
                panel = controls.build(form, pairs)
            with gr.Column(elem_id="view"):
                view = stage.build(take_away, opening())
        begins(panel.run.click(run, panel.widgets.values, view, **QUIET))
        panel.stop.click(stop, queue=False, **REPEATED)
        panel.open.upload(reopened, panel.open, view, **LATEST)
        # Not by ``input``: Gradio sends two for a click, and the second may come when the first has been answered.
        panel.replays.change(replayed, panel.replays, [view, panel.replays], **REPEATED)
        everything = [*panel.widgets.folds, panel.put_out, *panel.widgets.values]
        view.select(twice, panel.widgets.values, view, **QUIET)
        panel.settle(view.submit(use, None, everything, **QUIET))
        turns, prompt = (panel.widgets.inputs[name] for name in ("messages", "prompt"))
        view.end(answered, panel.widgets.values, [turns, prompt, panel.templated], **QUIET)
        keep_address(panel.widgets.values, form)
        loaded = page.load(opened, outputs=everything, **QUIET)
        loaded.then(**panel.about, **QUIET)  # where the link changes nothing
        ready(loaded.then(fn=None, js=KEPT, inputs=turns, outputs=turns))
        page.unload(leave)
    return page
