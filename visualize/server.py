"""Serves the pages until somebody interrupts the process, and then ends what is under way."""

from __future__ import annotations

import argparse
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from shutil import rmtree
from typing import Any, NoReturn

import gradio as gr
from fastapi.exceptions import RequestValidationError
from gradio.routes import App
from starlette.middleware import Middleware
from starlette.routing import Route

from lab.util.stdio import Output
from visualize import assets
from visualize import compression as wire
from visualize.assets import STATIC
from visualize.disconnects import Leaving
from visualize.jobs import sse_channel as channel
from visualize.jobs.job_queue import JobQueue
from visualize.jobs.run_store import MAX_RUN_FILE
from visualize.jobs.tab_heartbeat import Presence
from visualize.malloc_trim import REST, give_back
from visualize.not_found import absent
from visualize.options import in_address, known_hosts
from visualize.page_head import introduce_pages
from visualize.root_path import Rooted
from visualize.security import Guard, unreadable
from visualize.url_settings import OldLinks

UPLOADS = "decode-lab-uploads-"
"""How the name of a folder for uploads begins that is this server's own."""
PATIENCE = 5.0
"""Seconds that runs have to end when the server shuts down; a step takes far less."""
ANSWERING = 2.0
"""Further seconds that calling programs have to receive the outcome of their runs."""


def refuse(options: argparse.Namespace) -> NoReturn:
    """End where the address cannot be had."""
    print(
        f"app.py: cannot listen on {options.host}, port {options.port}: another program has it, or this machine has no "
        "such address. Choose another --port, or another --host.",
        file=sys.stderr,
    )
    sys.exit(2)


@contextmanager
def private_uploads() -> Iterator[None]:
    """Have a folder for uploads that nobody else on this machine can read. One of this server's own is deleted
    afterwards."""
    folder = Path(os.environ.get("GRADIO_TEMP_DIR", ""))
    with suppress(OSError):
        folder.mkdir(mode=0o700)  # before Gradio does
    try:
        yield
    finally:
        if folder.name.startswith(UPLOADS):
            rmtree(folder, ignore_errors=True)


@contextmanager
def unserved() -> Iterator[None]:
    """Make no application of the pages: Gradio makes one after each page that is built, of all pages so far, and uses
    only the one that is made at last, for serving. The others take almost half of the time from imports to answers."""
    make = App.create_app
    App.create_app = staticmethod(lambda *_, **_how: None)
    try:
        yield
    finally:
        App.create_app = staticmethod(make)


def serve(
    pages: gr.Blocks,
    options: argparse.Namespace,
    queue: JobQueue,
    told: Mapping[str | None, str],
    *,
    names: Collection[str],
    routes: Sequence[Route],
    announcement: Callable[[str], str] | None,
    **look: Any,
) -> None:
    """Serve ``pages`` until interrupted; then end what is under way, and tell those waiting for it.

    Args:
        options: see ``read_options``.
        queue: where the pages' runs wait.
        told: by caller, what each program waits for.
        names: the functions that programs may call.
        routes: the server's, beside those of the pages.
        announcement: what else to say of the address once the pages are there.
        look: of the pages, as Gradio's ``launch`` takes it.
    """
    introduce_pages()
    with unserved():
        pages.queue(api_open=False)
    pages._queue.sleep_when_free = 0.02  # each poll for new clicks, by default a thousand a second, halts the engine
    waiting: set[str] = set()
    asked = threading.Event()
    for name in ("SIGTERM", "SIGHUP"):  # before anybody can ask anything: all hear of its end
        number = getattr(signal, name, None)  # on Windows no terminal hangs up
        if number and signal.getsignal(number) is not signal.SIG_IGN:  # as nohup asks for
            signal.signal(number, lambda *_: asked.set())
    with private_uploads():
        _launch(pages, options, waiting, told, names=names, routes=routes, **look)
        # Not earlier: Ctrl-C has to end a long wait for a public link.
        signal.signal(signal.SIGINT, lambda *_: asked.set())
        output = Output()
        output.say(f"Decode Lab is at {pages.local_url.rstrip('/')}")
        gc.collect()
        gc.freeze()  # imported objects stay: scanning them takes half a second, in which nobody is answered
        gc.enable()
        if announcement:
            output.say(announcement(pages.share_url or pages.local_url))
        _wait_for_a_signal(asked, queue)
        queue.close(PATIENCE)
        _let_answer(waiting)
        _end_streams()
        pages.close(verbose=False)
        gc.unfreeze()  # otherwise Triton's library complains at exit about what it finds


def _launch(
    pages: gr.Blocks,
    options: argparse.Namespace,
    waiting: set[str],
    told: Mapping[str | None, str],
    *,
    names: Collection[str],
    routes: Sequence[Route],
    **look: Any,
) -> None:
    """Have Gradio answer. ``waiting``: where the callers are noted whose answers are under way."""
    try:
        pages.launch(
            app_kwargs={
                "routes": [channel.ROUTE, wire.ROUTE, assets.ROUTE, *routes],
                "middleware": [
                    Middleware(Rooted),
                    Middleware(OldLinks),
                    wire.ANSWERS,
                    Middleware(wire.Lasting),
                    Middleware(Leaving, waiting=waiting, told=told),
                    Middleware(Guard, names=names, hosts=known_hosts(options, os.environ)),
                    Middleware(Presence),
                ],
                "exception_handlers": {RequestValidationError: unreadable, 404: absent},
            },
            server_name=in_address(options.host),
            server_port=options.port,
            favicon_path=STATIC / "icon.svg",  # for what asks for no other
            max_threads=max(200, 2 * options.max_users),  # who waits has one, and can press Stop
            max_file_size=MAX_RUN_FILE,
            state_session_capacity=500,  # a fifth of a megabyte each
            run_history=False,  # it would lend whoever claims to be this machine a saved token (CVE-2026-134825)
            footer_links=[],
            share=options.share,
            quiet=True,
            prevent_thread_lock=True,
            show_error=True,
            ssr_mode=False,  # a Space would put Node in front, which passes on none of this server's own addresses
            enable_monitoring=False,
            mcp_server=find_spec("mcp") is not None,
            **look,
        )
    except OSError as error:
        if error.errno is None:  # Gradio's own: the port was taken since it was asked for
            refuse(options)
        print(f"app.py: the server cannot start: {error.strerror}.", file=sys.stderr)
        sys.exit(2)


def _wait_for_a_signal(asked: threading.Event, queue: JobQueue) -> None:
    """Wait until somebody presses Ctrl-C, or the system asks this process to end."""
    rested = 0
    while not asked.wait(1):  # on Windows, a wait without a timeout is deaf to signals
        rested = 0 if queue.inside else rested + 1
        if rested and rested % REST == 0:  # repeatedly: visits shorter than a second were not seen
            give_back()


def _let_answer(waiting: Collection[str]) -> None:
    """Wait for answers to be delivered: once closed, Gradio gives none, and keeps callers waiting until it ends."""
    until = time.monotonic() + ANSWERING
    while waiting and time.monotonic() < until:
        time.sleep(0.02)


def _end_streams() -> None:
    """End the streams that MCP clients keep open: closing would wait five seconds for them, and then break them off."""
    with suppress(ImportError):  # mcp, which brings it, need not be there
        from sse_starlette.sse import AppStatus

        AppStatus.should_exit = True
