"""Decode Lab: starts the page. ``python app.py --help`` tells the options."""

from __future__ import annotations

import argparse
import functools
import os
import threading

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
# The engine leaves one core to the server: torch's threads wait for each other at every
# operation, and one that has to share its core holds all of them up.
os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) - 1)))

import gradio as gr

from lab import Engine, load_engine
from visualize.channel import ROUTE
from visualize.panels import claims, compare, lab, lessons, memory, pool
from visualize.panels.look import style, theme
from visualize.shelf import MAX_RUN_FILE
from visualize.work import Line

_loading = threading.Lock()


@functools.cache
def _load(pair: str) -> Engine:
    return load_engine(draft=pair)


def engine(pair: str) -> Engine:
    """The engine of a model pair, loaded once and shared by everyone."""
    with _loading:
        return _load(pair)


def build() -> gr.Blocks:
    """All pages: the Lab at the root, every other at an address of its own."""
    line = Line()  # one for all pages: there is one machine
    pages = lab.build(engine, line)
    with pages.route("Compare", "/compare", show_in_navbar=False):
        compare.build(pages, engine, line)
    with pages.route("Lessons", "/lessons", show_in_navbar=False):
        lessons.build(pages, engine, line)
    with pages.route("Pool", "/pool", show_in_navbar=False):
        pool.build(pages, engine, line)
    with pages.route("Memory", "/memory", show_in_navbar=False):
        memory.build(pages)
    with pages.route("Claims", "/claims", show_in_navbar=False):
        claims.build(pages, engine, line)
    return pages


def main(arguments: list[str] | None = None) -> None:
    """Serve the page until interrupted."""
    parser = argparse.ArgumentParser(description="Watch a language model decode, in the browser.")
    parser.add_argument("--host", default=os.environ.get("GRADIO_SERVER_NAME", "127.0.0.1"))
    parser.add_argument("--port", type=int, default=os.environ.get("GRADIO_SERVER_PORT", "7860"))
    options = parser.parse_args(arguments)
    pages = build()
    pages._queue.sleep_when_free = 0.02  # each look for new clicks, by default a thousand a second, halts the engine
    pages.launch(
        app_kwargs={"routes": [ROUTE]},
        server_name=options.host,
        server_port=options.port,
        theme=theme(),
        head=style(),
        max_threads=200,
        max_file_size=MAX_RUN_FILE,
        run_history=False,
        footer_links=[],
        share=False,
    )


if __name__ == "__main__":
    main()
