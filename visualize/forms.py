"""Parts of pages: inputs, made from the page's settings, and components that a script draws."""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import gradio as gr

from visualize.assets import loader, read
from visualize.gradio_events import QUIET
from visualize.url_settings import Form

SHOW_SETTINGS = "() => { document.body.classList.toggle('setting'); scrollTo(0, 0) }"


def settings_button() -> None:
    """On a phone, where the picture comes first (page.css: ``picture-first``), the button behind which settings are."""
    gr.Button("Settings", elem_id="show-settings").click(None, js=SHOW_SETTINGS, **QUIET)


class Widgets:
    """Makes the inputs of ``form``. ``inputs``: those made so far by name; ``folds``: with the names of those in it."""

    def __init__(self, form: Form) -> None:
        self.form = form
        self.inputs: dict[str, Any] = {}
        self.folds: dict[gr.Accordion, list[str]] = {}

    @property
    def values(self) -> list[Any]:
        """The inputs in the order of the form."""
        return [self.inputs[name] for name in self.form.names]

    def add(self, *names: str, **more: Any) -> None:
        """Lay out the inputs of these settings, each as its kind asks for."""
        for name in names:
            self.inputs[name] = self._make(name, **more)

    @contextmanager
    def fold(self, title: str, elem_id: str) -> Iterator[None]:
        """A fold, closed at first, with the inputs that are added meanwhile."""
        before = len(self.inputs)
        with gr.Accordion(title, open=False, elem_id=elem_id) as fold:
            yield
        self.folds[fold] = list(self.inputs)[before:]

    def unfolded(self, asked: Collection[str], values: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Updates of the folds: where an input is set to something else than its default, that can be seen. The others
        stay as they are.

        Args:
            asked: the inputs that were asked for. What follows from them for others is seen without a look at those.
            values: of all inputs, as they are set.
        """
        changed = {name for name, value in values.items() if name in asked and value != self.form.defaults[name]}
        return [gr.skip() if changed.isdisjoint(names) else gr.update(open=True) for names in self.folds.values()]

    def _make(self, name: str, **more: Any) -> gr.components.Component:
        one = self.form[name]
        info = one.about.get(one.default) or one.help
        of: dict[str, Any] = {
            "value": one.default,
            "label": one.label,
            "info": info or None,
            "elem_id": _id(name),
        } | more
        if one.hide:
            of = {"visible": "hidden"} | of
        options = [(text, value) for value, text in one.options.items()]
        match one.kind:
            case "switch":
                return gr.Checkbox(elem_classes="toggle", **of | {"elem_id": f"toggle-{_id(name)}"})
            case "choice" if one.listed:
                return gr.Dropdown(options, elem_classes="listed", **of)
            case "choice":
                return gr.Radio(options, elem_classes="choice", **of)
            case "choices":
                return gr.CheckboxGroup(options, **of | {"value": [it for it in one.default if it in one.options]})
            case "number" if one.step is None:
                return gr.Number(**of)  # a fraction is refused where it makes no sense, and not rounded
            case "number":
                return gr.Slider(*one.bounds, step=one.step, **of)
        box = gr.Textbox(lines=one.lines, max_lines=max(one.lines, one.max_lines), max_length=one.most_characters, **of)
        if one.lines > 1:
            _say_when_full(box, one.most_characters)
        return box


def component(name: str, setup: dict[str, Any], template: str = "", **settings: Any) -> gr.HTML:
    """A template and the module of that name, which draws JSON into it.

    Args:
        name: the path of both in ``visualize/``, without its ending.
        setup: what the module starts with.
        template: the path of the template, if it has another name.
    """
    return gr.HTML(
        html_template=read(f"{template or name}.html"),
        js_on_load=loader(f"{name}.js", setup),
        apply_default_css=False,
        **{"value": ""} | settings,
    )


def answering(answers: Iterable[tuple[Sequence[Any], Any]], otherwise: Any = None) -> str:
    """A script that answers an event in the browser, at once: an answer of the server could come late, and undo what
    was chosen meanwhile.

    Args:
        answers: to each of these values of the event's inputs. All other values get ``otherwise``.
    """
    known = json.dumps([[values, answer] for values, answer in answers])
    return f"""(...values) => {{
      const text = JSON.stringify(values);
      const found = {known}.find(([known]) => JSON.stringify(known) === text);
      return found ? found[1] : {json.dumps(otherwise)};
    }}"""


def _say_when_full(box: gr.Textbox, most: int) -> None:
    """Say so when the text is full: a browser cuts off pasted text silently. ``most``: characters."""
    infos = json.dumps([f"{most:,}-character limit reached; the rest was cut.", box.info or ""])
    script = f"(text) => ({{ __type__: 'update', info: {infos}[text.length < {most} ? 1 : 0] }})"
    box.change(fn=None, inputs=box, outputs=box, js=script, show_progress="hidden", api_visibility="private")


def _id(name: str) -> str:
    """The id of a setting's element. "stop" is that of a button."""
    return "stop-strings" if name == "stop" else name.replace("_", "-")
