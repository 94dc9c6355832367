"""A workshop's part of the pages: the Room page, with the pool that all share, and the strip above the Lab."""

from __future__ import annotations

import gradio as gr

from visualize import page_header as header
from visualize.charts import looks
from visualize.charts.workshop_charts import CHARTS
from visualize.forms import component
from visualize.gradio_events import QUIET, ready


def build(pages: gr.Blocks) -> None:
    """Lay the page out, inside a route of ``pages``. What it shows comes from ``visualize.pages.workshop.routes``."""
    header.build("Room")
    setup = {"shells": {name: looks(make) for name, make in CHARTS.items()}}
    component("pages/workshop/page", setup, elem_id="room")
    ready(pages.load(fn=None, **QUIET))


def strip() -> gr.HTML:
    """The strip above the Lab that says who follows whom."""
    return component("pages/workshop/workshop_bar", {}, elem_id="workshop")
