"""The left column: what the engine is asked to do. The toggles are always in view."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import gradio as gr
from gradio.events import Dependency

from lab.models.chat_template import thinking_switch
from lab.registry import EMBEDDED, LISTED, Pair
from lab.settings import DRAFTERS, SETTINGS
from visualize.example_prompts import examples, listed
from visualize.forms import Widgets, settings_button
from visualize.gradio_events import LATEST, QUIET
from visualize.pages.lab import conversation
from visualize.pages.lab.model_badge import badge
from visualize.recorded_results import runs
from visualize.run_settings import FORM, OTHER, Settings, unusable, unused, without_unusable
from visualize.url_settings import Form

FOLDS = {"Pool": "pool", "Sampling": "sampling", "Device": "computing"}
"""Titles of the folds, which are the settings' groups, and their elements' ids."""
MODELS = ("pair", "target", "draft")
"""The picker of the models, beside what is said of them."""
CHAT = ("system", "messages", "thinking")
"""Inputs of a conversation, beside the prompt, which is its next message."""
TOLD = ("pair", "target", "prompt", "messages", "raw", "token_ids", "enable_prefix_caching")
"""Controls that decide what is said of the models and of the conversation."""
TO_END = "() => setTimeout(() => document.querySelector('#conversation ol')?.scrollTo(0, 1e6), 50)"
"""The newest turn comes into view."""
UNSURE_SEED = "Adaptive γ follows measured times: the same seed may give another text; leave empty for random."
"""Of the seed, where measured times decide how many draws a round uses."""
SAYING_MORE = ("kv_dtype", "speculative", "seed", "num_speculative_tokens", "logprobs")
"""Controls whose text depends on others' values."""
DEPENDENT = tuple(name for name, one in FORM.settings.items() if one.needs or name in SAYING_MORE)
"""Controls that depend on others."""
SWITCHES = tuple(
    name
    for name in FORM.names
    if any(name in need.of for one in FORM.settings.values() for need in one.needs)
    or name in ("kv_dtype", "pair", "adaptive_window", "rejection_sample_method", "draft_sample_method")
)
"""Controls that others depend on."""


@dataclass(frozen=True)
class Controls:
    """The inputs, the values chosen for those now out of use, the conversation, what says whether there is one,
    and the buttons."""

    widgets: Widgets
    put_out: gr.State
    templated: gr.HTML
    about: dict[str, Any]
    run: gr.Button
    stop: gr.Button
    open: gr.UploadButton
    replays: gr.Dropdown

    def settle(self, shown: Dependency) -> None:
        """Repeat what ``shown`` put on the dependent controls: the answer to a switch turned before may come later."""
        dependent = [self.put_out, *(self.widgets.inputs[name] for name in DEPENDENT)]
        shown.success(_settled, self.widgets.values, dependent, queue=False, **QUIET)


def build(form: Form, pairs: Mapping[str, Pair]) -> Controls:
    """Lay the controls out. Their values, limits and choices are those of ``form``, with these model ``pairs``."""
    widgets = Widgets(form)  # with all drafters: a request with another is refused
    groups = {title: [one.name for one in form.settings.values() if one.group == title] for title in ("", *FOLDS)}
    with gr.Row(elem_id="actions"):
        run = gr.Button("Run", variant="primary", elem_id="run")
        stop = gr.Button("Stop", elem_id="stop")
        reopen = gr.UploadButton("Open", elem_id="open")
        settings_button()
    with gr.Column(elem_id="settings"):
        widgets.add("system", "messages")
        turns = gr.HTML("", elem_id="conversation", visible="hidden")
        with gr.Row(elem_id="beside-chat"):
            templated = gr.HTML("", elem_id="templated", visible="hidden")
            new = gr.Button("New chat", elem_id="new-chat", visible="hidden")
        widgets.add("prompt", "thinking", *MODELS)
        models = gr.HTML(badge(form["pair"].default, pairs, form["prompt"].default), elem_id="models")
        with gr.Row(elem_id="lists"):
            examples(widgets.inputs["prompt"])
            replays = recordings()
        widgets.add(*(name for name in groups[""] if name not in ("prompt", *CHAT, *MODELS)))
        with gr.Row(elem_id="folds"):
            for title, elem_id in FOLDS.items():
                with widgets.fold(title, elem_id):
                    widgets.add(*groups[title])

    def about_models(*values: Any) -> list[Any]:
        settings = Settings.of(values)
        template = conversation.template_of(settings, pairs, own)
        talks = conversation.talks(settings, template)
        said = badge(settings.pair, pairs, settings.prompt, talks=talks, templated=bool(template))
        return [said, *_talking(talks, template, settings)]

    inputs, own = widgets.inputs, OTHER in form["pair"].options
    told = [models, turns, templated, new, run, *(inputs[name] for name in ("prompt", "system", "thinking", "raw"))]
    about = {"fn": about_models, "inputs": widgets.values, "outputs": told, "queue": False}
    gr.on([inputs[name].change for name in TOLD], **about, **LATEST)

    def with_prefixes(*values: Any) -> Any:
        settings = Settings.of(values)
        talks = conversation.talks(settings, conversation.template_of(settings, pairs, own))
        return True if talks and settings.paged else gr.skip()

    turns.change(fn=None, js=TO_END)
    chosen = [inputs["pair"].input, inputs["target"].input]
    gr.on(chosen, with_prefixes, widgets.values, inputs["enable_prefix_caching"], queue=False, **LATEST)
    new.click(lambda: ["", ""], None, [inputs["messages"], templated], queue=False, **QUIET)
    put_out = gr.State({})
    gr.on(
        [widgets.inputs[name].input for name in SWITCHES],
        _follow,
        [put_out, *widgets.values],
        [put_out, *(widgets.inputs[name] for name in DEPENDENT)],
        queue=False,
        **LATEST,
    )
    return Controls(widgets, put_out, templated, about, run, stop, reopen, replays)


def _talking(talks: bool, template: str | None, settings: Settings) -> list[Any]:
    """Updates of the conversation, its templated prompt, its button, Run, the prompt and what belongs to a chat."""
    turns = conversation.shown(settings) if talks else ""
    prompt = FORM["prompt"]

    def seen(so: object) -> Any:
        return True if so else "hidden"

    return [
        gr.update(value=turns, visible=seen(turns)),
        gr.update(visible=seen(turns)),
        gr.update(visible=seen(turns)),
        gr.update(value="Send" if talks else "Run"),
        gr.update(label="Message" if talks else prompt.label),
        gr.update(visible=seen(talks)),
        gr.update(visible=seen(talks and thinking_switch(template))),
        gr.update(visible=seen(template)),
    ]


def recordings() -> gr.Dropdown:
    """A list of the runs that the repository keeps, each by its name in ``visualize.recorded_results.runs``."""
    names = [(name, name) for name in runs()]
    return listed("GPU recordings", names, elem_id="replays", visible=bool(names), filterable=False)


def follow(settings: Settings, put_out: dict[str, Any]) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """Effect of a switch on the other controls.

    Args:
        settings: the controls' values.
        put_out: the settings that could not be used until now, each with the value last chosen for it.

    Returns:
        Updates by control: one that has no effect is disabled or hidden and says what it needs; where it would be
        refused it is off, and gets back the chosen value when it can be used again. And the new ``put_out``.
    """
    wanted = replace(settings, **put_out)
    needs, out = unused(wanted), unusable(wanted)
    settings = without_unusable(wanted)
    updates = {}
    for name in DEPENDENT:
        missing, hides = needs.get(name), FORM[name].hide
        info = f"Needs {missing.what}." if missing and not hides else _info(name, settings)
        updates[name] = gr.update(interactive=hides or not missing, info=info)
        if hides:
            updates[name]["visible"] = "hidden" if missing else True
    for name in out.keys() | put_out.keys():
        updates[name]["value"] = getattr(settings, name)
    offered = drafters(settings.pair, settings.speculative)
    updates["speculative"]["choices"] = [(text, value) for value, text in offered.items()]
    label = FORM["num_speculative_tokens"].label
    most = settings.adaptive_window and settings.speculative != "off"
    updates["num_speculative_tokens"]["label"] = f"Max {label[0].lower()}{label[1:]}" if most else label
    return updates, {name: getattr(wanted, name) for name in out}


def drafters(pair: str, chosen: str = "") -> dict[str, str]:
    """The drafters to choose from with a pair, and that which is ``chosen``. An MTP head comes with its model, and none
    with those that the lab knows."""
    without = {"mtp"} - {chosen} if pair in EMBEDDED or pair in LISTED else set()
    return {name: text for name, text in DRAFTERS.items() if name not in without}


def _info(name: str, settings: Settings) -> str:
    measured = settings.pair in EMBEDDED  # what recordings cost and formats lose was measured with these models
    if name == "seed" and settings.adaptive_window and settings.speculative != "off":
        return UNSURE_SEED
    one = FORM[name] if measured or name not in ("kv_dtype", "logprobs") else SETTINGS[name]
    return one.about.get(getattr(settings, name)) or one.help


def show(settings: Settings) -> list[Any]:
    """The controls that ``settings`` put out of use, and updates that put ``settings`` on the controls. A link cannot
    say what was chosen for a control that is out of use: it comes back with its default."""
    updates, put_out = follow(settings, {name: FORM[name].default for name in unusable(settings)})
    return [put_out, *(gr.update(value=getattr(settings, name)) | updates.get(name, {}) for name in FORM.names)]


def _settled(*values: Any) -> list[Any]:
    """As ``show``, of the dependent controls only: the others may have been changed since."""
    put_out, *updates = show(Settings.of(values))
    shown = dict(zip(FORM.names, updates, strict=True))
    return [put_out, *(shown[name] for name in DEPENDENT)]


def _follow(put_out: dict[str, Any], *values: Any) -> list[Any]:
    """Updates of the other controls after a switch."""
    updates, put_out = follow(Settings.of(values), put_out)
    return [put_out, *(updates[name] for name in DEPENDENT)]
