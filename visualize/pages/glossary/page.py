"""The Glossary page: ``docs/glossary.md``."""

import gradio as gr

from visualize import glossary
from visualize import page_header as header
from visualize.gradio_events import QUIET, ready


def build(pages: gr.Blocks) -> None:
    """Lay the page out, inside a route of ``pages``."""
    header.build("Glossary")
    gr.HTML(f'<article class="glossary">{glossary.page()}</article>', apply_default_css=False, elem_id="sheet")
    ready(pages.load(None, **QUIET))
