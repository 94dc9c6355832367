"""Starts Gradio with the lab's pages, serves until interrupted, and then ends what is under way."""

import argparse
import asyncio
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from shutil import rmtree
from typing import Any, NoReturn

import gradio as gr
from fastapi.exceptions import RequestValidationError
from starlette.middleware import Middleware
from starlette.routing import Route

from lab.util.stdio import Output
from visualize import assets
from visualize.api_clients import ClientsMiddleware, leave
from visualize.jobs import sse_channel
from visualize.jobs.job_queue import JobQueue
from visualize.jobs.run_store import MAX_RUN_FILE
from visualize.jobs.tab_heartbeat import HeartbeatMiddleware
from visualize.middleware import GZIP, PagesMiddleware
from visualize.missing_page import missing
from visualize.options import in_address, known_hosts
from visualize.own_files import ROUTE
from visualize.page_list import ABOUT
from visualize.security import SecurityMiddleware, unreadable

UPLOADS = "decode-lab-uploads-"
"""Begins the name of a folder for uploads that is this server's own."""
PATIENCE_S = 5.0
"""Seconds that jobs have to end when the server shuts down; a step takes far less."""
ANSWERING_S = 2.0
"""Further seconds that programs have to receive the outcome of their jobs."""


def refuse(options: argparse.Namespace) -> NoReturn:
    """End where the address cannot be had."""
    print(
        f"app.py: cannot listen on {options.host}, port {options.port}: another program has it, or this machine has no "
        "such address. Choose another --port, or another --host.",
        file=sys.stderr,
    )
    sys.exit(2)


@contextmanager
def private_uploads() -> Iterator[Path]:
    """A folder for uploads, private to this user; one of this server's own is deleted at the end."""
    folder = Path(os.environ.get("GRADIO_TEMP_DIR", ""))
    own = folder.name.startswith(UPLOADS)
    with suppress(OSError):
        folder.mkdir(mode=0o700, exist_ok=own)
        if own:
            folder.chmod(0o700)  # Gradio may have made it for the pages, before any upload
    try:
        yield folder
    finally:
        if own:
            rmtree(folder, ignore_errors=True)


def serve(
    pages: gr.Blocks,
    options: argparse.Namespace,
    queue: JobQueue,
    status: Mapping[str | None, str],
    *,
    names: Collection[str],
    routes: Sequence[Route],
    announcement: Callable[[str], str] | None,
    **look: Any,
) -> None:
    """Serve ``pages`` until interrupted; then end what is under way, and tell those who wait for it.

    Args:
        options: see ``read_options``.
        queue: where the pages' jobs wait.
        status: by client, what each program waits for.
        names: the functions that programs may call.
        routes: the server's, beside those of the pages.
        announcement: what else to print of the address once the pages are there.
        look: of the pages, as Gradio's ``launch`` takes it.
    """
    pages.queue(api_open=False)
    waiting: set[str] = set()
    asked = threading.Event()
    for name in ("SIGTERM", "SIGHUP"):  # before any client can ask anything: all hear of its end
        number = getattr(signal, name, None)  # on Windows no terminal hangs up
        if number and signal.getsignal(number) is not signal.SIG_IGN:  # as nohup asks for
            signal.signal(number, lambda *_: asked.set())
    with private_uploads() as uploads:
        hosts = known_hosts(options, os.environ)
        middleware = [
            GZIP,
            Middleware(PagesMiddleware, names={"/": "Lab"} | {f"/{name.lower()}": name for name in ABOUT}),
            Middleware(SecurityMiddleware, pages=pages, names=names, hosts=hosts, uploads=uploads),
            Middleware(ClientsMiddleware, pages=pages, waiting=waiting, status=status),
            Middleware(HeartbeatMiddleware, leave=partial(_leave, pages), closed=lambda: queue.closed),
        ]
        _launch(pages, options, middleware, [sse_channel.ROUTE, ROUTE, *assets.ROUTES, *routes], look)
        # Not earlier: Ctrl-C has to end a long wait for a public link.
        signal.signal(signal.SIGINT, lambda *_: asked.set())
        output = Output()
        output.say(f"Decode Lab is at {pages.local_url.rstrip('/')}")
        gc.collect()
        gc.freeze()  # imported objects stay: scanning them takes half a second, in which no client is answered
        gc.enable()
        if announcement:
            output.say(announcement(pages.share_url or pages.local_url))
        while not asked.wait(1):  # on Windows, a wait without a timeout is deaf to signals
            pass
        queue.close(PATIENCE_S)
        until = time.monotonic() + ANSWERING_S
        while waiting and time.monotonic() < until:  # once closed, Gradio gives no answer
            time.sleep(0.02)
        pages.close(verbose=False)
        gc.unfreeze()  # otherwise Triton's library complains at exit about what it finds


def _leave(pages: gr.Blocks, session: str) -> None:
    """Notify a session's listeners in a thread: they may wait for a lock, and what it sent before comes first."""
    asyncio.get_running_loop().run_in_executor(None, leave, pages, session)


def _launch(
    pages: gr.Blocks,
    options: argparse.Namespace,
    middleware: list[Middleware],
    routes: list[Route],
    look: dict[str, Any],
) -> None:
    # Run history lends whoever claims to be this machine a saved token (CVE-2026-134825). Older versions have none.
    newer = {"run_history": False} if "run_history" in signature(pages.launch).parameters else {}
    try:
        pages.launch(
            app_kwargs={
                "routes": routes,
                "middleware": middleware,
                "exception_handlers": {RequestValidationError: unreadable, 404: missing},
            },
            server_name=in_address(options.host),
            server_port=options.port,
            favicon_path=assets.STATIC / "icon.svg",  # for what asks for no other
            max_threads=max(200, 2 * options.max_users),  # who waits has one, and can press Stop
            max_file_size=MAX_RUN_FILE,
            state_session_capacity=500,  # half a megabyte each
            footer_links=[],
            share=options.share,
            quiet=True,
            prevent_thread_lock=True,
            show_error=True,
            ssr_mode=False,  # a Space would put Node in front, which passes on none of this server's own addresses
            enable_monitoring=False,
            mcp_server=find_spec("mcp") is not None,
            **newer,
            **look,
        )
    except OSError as error:
        if error.errno is None:  # Gradio's own: the port was taken since it was asked for
            refuse(options)
        print(f"app.py: the server cannot start: {error.strerror}.", file=sys.stderr)
        sys.exit(2)
