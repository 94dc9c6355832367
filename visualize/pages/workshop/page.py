"""The Room page of a workshop, with the pool that all share."""

import gradio as gr

from visualize import page_header as header
from visualize.charts.base import shells
from visualize.charts.pool_charts import ROOM_CHARTS
from visualize.forms import component
from visualize.gradio_events import QUIET, ready


def build(pages: gr.Blocks) -> None:
    """Lay the page out, inside a route of ``pages``. What it shows comes from ``visualize.workshop``."""
    header.build("Room")
    setup = {"shells": shells(ROOM_CHARTS)}
    component("pages/workshop/page", setup, elem_id="room")
    ready(pages.load(fn=None, **QUIET))
