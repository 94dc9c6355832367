"""What pages are made of: inputs, made from their description in a page's link, and components that a script draws."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import gradio as gr

from visualize.assets import loader, read
from visualize.url_settings import Link


@dataclass(frozen=True)
class Widgets:
    """Makes the input for a setting of ``link`` by its name, with its label and the text below it from ``says``.

    ``folds``: those made so far, each with the names of the inputs in it.
    """

    link: Link
    labels: Mapping[str, str]
    says: Mapping[str, str]
    folds: dict[gr.Accordion, list[str]] = field(default_factory=dict, init=False)

    @contextmanager
    def fold(self, title: str, elem_id: str, inputs: Mapping[str, Any]) -> Iterator[None]:
        """A fold, closed at first, with what is added to ``inputs`` meanwhile."""
        before = len(inputs)
        with gr.Accordion(title, open=False, elem_id=elem_id) as fold:
            yield
        self.folds[fold] = list(inputs)[before:]

    def unfolded(self, asked: Collection[str], values: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Updates of the folds: where an input is set to something else than its default, that can be seen. The others
        stay as they are.

        Args:
            asked: the inputs that were asked for. What follows from them for others is seen without a look at those.
            values: of all inputs, as they are set.
        """
        changed = {name for name, value in values.items() if name in asked and value != self.link.defaults[name]}
        return [gr.skip() if changed.isdisjoint(names) else gr.update(open=True) for names in self.folds.values()]

    def slider(self, name: str, step: float = 1, **settings: Any) -> gr.Slider:
        low, high = self.link.bounds[name]
        return gr.Slider(low, high, step=step, **self._of(name), **settings)

    def number(self, name: str, **settings: Any) -> gr.Number:
        return gr.Number(**self._of(name), **settings)  # a fraction is refused where it makes no sense, and not rounded

    def text(self, name: str, lines: int, most_lines: int, **settings: Any) -> gr.Textbox:
        most = self.link.most_characters[name]
        box = gr.Textbox(lines=lines, max_lines=most_lines, max_length=most, **self._of(name), **settings)
        if lines > 1:
            _say_when_full(box, most)
        return box

    def choice(self, name: str) -> gr.Radio:
        """One of a few, side by side."""
        return gr.Radio(self._choices(name), elem_classes="choice", **self._of(name))

    def choices(self, name: str) -> gr.CheckboxGroup:
        """Several of a few."""
        chosen = [value for value in self.link.defaults[name] if value in self.link.choices[name]]
        return gr.CheckboxGroup(self._choices(name), **self._of(name) | {"value": chosen})

    def listed(self, name: str) -> gr.Dropdown:
        """One of many."""
        return gr.Dropdown(self._choices(name), elem_classes="listed", **self._of(name))

    def pair(self) -> gr.Radio | gr.Dropdown:
        """One of the model pairs: two are side by side, more are in a list."""
        return self.choice("pair") if len(self.link.choices["pair"]) == 2 else self.listed("pair")

    def toggle(self, name: str) -> gr.Checkbox:
        return gr.Checkbox(elem_classes="toggle", **self._of(name) | {"elem_id": f"toggle-{_id(name)}"})

    def _of(self, name: str) -> dict[str, Any]:
        label, info = self.labels[name], self.says.get(name)
        return {"value": self.link.defaults[name], "label": label, "info": info, "elem_id": _id(name)}

    def _choices(self, name: str) -> list[tuple[str, Any]]:
        return [(text, value) for value, text in self.link.choices[name].items()]


def component(name: str, setup: dict[str, Any], template: str = "", **settings: Any) -> gr.HTML:
    """A template and the module of that name, which draws JSON into it.

    Args:
        name: the path of both in ``visualize/``, without its ending.
        setup: what the module starts with.
        template: the path of the template, if it has another name.
    """
    return gr.HTML(
        value="",
        html_template=read(f"{template or name}.html"),
        js_on_load=loader(f"{name}.js", setup),
        apply_default_css=False,
        **settings,
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
    infos = json.dumps([f"{most:,} of {most:,} characters: anything after that is cut off.", box.info or ""])
    script = f"(text) => ({{ __type__: 'update', info: {infos}[text.length < {most} ? 1 : 0] }})"
    box.change(fn=None, inputs=box, outputs=box, js=script, show_progress="hidden", api_visibility="private")


def _id(name: str) -> str:
    return name.replace("_", "-")
