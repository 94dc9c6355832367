"""Prompts to try."""

from typing import Any

import gradio as gr

from visualize.run_settings import FORM

EXAMPLES = (
    FORM["prompt"].default,
    "In the middle of a dark forest stood a little house, and in the house lived an old woman who",
    "The king's youngest daughter went down to the well, and there she saw",
    "“Who is there?” cried the giant, and he",
    "A fox once met a wolf upon the road, and said to him,",
)


def examples(prompt: gr.Textbox) -> None:
    """A list of prompts to try, for ``prompt``."""
    some = listed("Example prompts", [(_shortened(text), text) for text in EXAMPLES], elem_id="openings")
    # Not by ``input``, which Gradio also sends when a list is left: what was written since would be lost.
    some.change(
        fn=None, inputs=[some, prompt], outputs=[prompt, some], js="(opening, prompt) => [opening || prompt, '']"
    )


def listed(caption: str, choices: list[tuple[str, str]], **settings: Any) -> gr.Dropdown:
    """A list that says its ``caption`` where nothing, "", is chosen."""
    choices = [(caption, ""), *choices]
    return gr.Dropdown(choices, value="", label=caption, show_label=False, container=False, **settings)


def _shortened(text: str) -> str:
    return text if len(text) <= 44 else text[:43].rsplit(" ", 1)[0] + " …"
