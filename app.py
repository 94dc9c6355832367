"""Decode Lab: starts the page. ``python app.py --help`` lists the options."""

from __future__ import annotations

import gc
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Collection
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from shutil import rmtree
from tempfile import gettempdir
from typing import NoReturn

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
# Gradio's own statistics, which nothing uses, would go through the last ten thousand events after every event.
os.environ.setdefault("GRADIO_ANALYTICS_MAX_EVENTS", "1")
os.environ.setdefault("GRADIO_ANALYTICS_CACHE_FREQUENCY", "1000000000")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")  # else an MCP call, with Gradio as its own client, asks the hub

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C during start-up ends silently; later see ``main``
    # Gradio's own folder for uploads, /tmp/gradio, belongs to whoever on this machine used Gradio first.
    own_uploads = f"{gettempdir()}/decode-lab-uploads-{secrets.token_hex(8)}"
    os.environ["GRADIO_TEMP_DIR"] = os.environ.get("GRADIO_TEMP_DIR") or own_uploads
    gc.disable()  # imported objects stay: scanning them again and again takes a quarter of the start-up

from lab.native.cores import cores

# The engine leaves one core to the server: torch's threads wait for each other at every
# operation, and a thread that has to share its core holds up all of them.
os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores() - 1)))

from visualize.server.options import (
    KEY,
    SHARED,
    ask_directly,
    borrows_a_gpu,
    can_listen,
    in_address,
    is_private,
    known_hosts,
    read_options,
)

if borrows_a_gpu(os.environ):  # before anything asks torch for a GPU: afterwards no forked process could use one
    import spaces  # noqa: F401
elif __name__ == "__main__" and read_options(None, os.environ).device == "cpu":
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # hide GPUs that are not to be used: the pages offer what works here

import gradio as gr
from fastapi.exceptions import RequestValidationError
from starlette.middleware import Middleware

from lab import LabError
from lab.engines import EMBEDDED, Engines, listed, own
from lab.options import print_utf8
from lab.remote.server import Server
from visualize.assets import STATIC
from visualize.lessons.instructor import Answers
from visualize.pages import PAGES
from visualize.panels import claims, compare, deploy, instructor, lab, lessons, memory, pool, room, server
from visualize.panels.look import style, theme
from visualize.programs import programs
from visualize.run.settings import DEFAULTS
from visualize.server import channel, wire
from visualize.server.absent import absent
from visualize.server.allocator import REST, give_back, share_arenas
from visualize.server.apart import Apart
from visualize.server.guard import Guard, unreadable
from visualize.server.head import introduce_pages
from visualize.server.leaving import Leaving
from visualize.server.monitoring import Monitor
from visualize.server.presence import Presence
from visualize.server.rooted import Rooted
from visualize.server.sessions import keep_no_values, share_configurations
from visualize.server.shelf import MAX_RUN_FILE
from visualize.server.work import Line
from visualize.workshop.workshop import Workshop

UPLOADS = "decode-lab-uploads-"
"""How the name of a folder for uploads begins that is this server's own."""
PATIENCE = 5.0
"""Seconds that runs have to end when the server shuts down; a step takes far less."""
ANSWERING = 2.0
"""Further seconds that calling programs have to receive the outcome of their runs."""


def build(
    engines: Engines,
    embedded: Engines,
    line: Line,
    attached: Server | None = None,
    borrowed: bool = False,
    workshop: Workshop | None = None,
    *,
    told: dict[str | None, str],
) -> gr.Blocks:
    """All pages: the Lab at the root, every other page at its own address. Lessons and claims use the embedded pair,
    the other pages any of ``engines``. There is one ``line`` for all, because there is one machine. ``attached``: a
    vLLM server to watch. ``borrowed``: each of the Lab's runs borrows a GPU. ``workshop``: the one that visitors join.
    ``told``: see ``Programs``.
    """
    if attached:
        PAGES["Server"] = "server"
    if workshop:
        PAGES["Room"] = "room"
    load = engines
    if borrowed:
        from visualize.server.zero import borrowing  # a package that only such a Space has

        load = borrowing(engines)
    pages = lab.build(load, line, engines.offered, any_pair=engines.any_pair, workshop=workshop)
    answers = Answers()
    with pages.route("Compare", "/compare", show_in_navbar=False):
        compare.build(pages, engines, line, engines.offered)
    with pages.route("Lessons", "/lessons", show_in_navbar=False):
        lessons.build(pages, embedded, line, answers)
    with pages.route("Instructor", "/instructor", show_in_navbar=False):
        instructor.build(pages, embedded, line, answers)
    with pages.route("Pool", "/pool", show_in_navbar=False):
        pool.build(pages, engines, line)
    with pages.route("Memory", "/memory", show_in_navbar=False):
        memory.build(pages)
    with pages.route("Claims", "/claims", show_in_navbar=False):
        claims.build(pages, embedded, line)
    with pages.route("Deploy", "/deploy", show_in_navbar=False):
        deploy.build(pages)
    if attached:
        with pages.route("Server", "/server", show_in_navbar=False):
            server.build(pages, attached, line)
    if workshop:
        with pages.route("Room", "/room", show_in_navbar=False):
            room.build(pages)
    with pages:
        programs.build(pages, engines, line, tuple(engines.offered), told)
    share_configurations(pages)
    keep_no_values()
    return pages


def main(arguments: list[str] | None = None) -> None:
    """Serve the page until interrupted; then end what is under way, and tell those waiting for it."""
    share_arenas()
    options = read_options(arguments, os.environ)
    print_utf8()
    if not can_listen(options.host, options.port):  # asked before models are loaded, which may take minutes
        _refuse(options.host, options.port)
    ask_directly(options.host, os.environ)
    borrowed = borrows_a_gpu(os.environ)  # if so, this process itself never touches one
    place = {"device": "cpu" if borrowed else options.device, "dtype": options.dtype}
    chosen = options.target or options.draft
    if borrowed and chosen:
        sys.exit("app.py: a ZeroGPU Space runs the embedded pair: leave DECODE_LAB_TARGET and DECODE_LAB_DRAFT unset.")
    offered = {DEFAULTS["pair"]: own(options.target, options.draft)} if chosen else EMBEDDED
    with suppress(OSError):  # each run then tries again, and says in the log what it does without
        Apart.start()
    line = Line(options.max_users, together=options.workshop)
    key = os.environ.get(KEY)
    workshop = Workshop(line, options.host, key) if options.workshop else None
    monitor = Monitor(line)
    monitors = [monitor, workshop.room] if workshop else [monitor]
    private, hosts = is_private(options, os.environ), known_hosts(options, os.environ)
    engines = Engines(offered | listed(**place), any_pair=private, monitors=monitors, **place)
    embedded = Engines(monitors=monitors, **place) if chosen else engines
    if chosen:
        try:
            engines(DEFAULTS["pair"])
        except LabError as error:
            print(f"app.py: {error}", file=sys.stderr)
            sys.exit(2)
    if options.share:
        print(SHARED, file=sys.stderr)
    uploads = Path(os.environ.get("GRADIO_TEMP_DIR", ""))
    with suppress(OSError):
        uploads.mkdir(mode=0o700)  # before Gradio does: nobody else on this machine is to read it
    waiting: set[str] = set()
    told: dict[str | None, str] = {}
    pages = build(engines, embedded, line, options.attach, borrowed, workshop, told=told)
    introduce_pages()
    pages.queue(api_open=False)
    pages._queue.sleep_when_free = 0.02  # each poll for new clicks, by default a thousand a second, halts the engine
    asked = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: asked.set())  # before anybody can ask anything: all hear of its end
    try:
        pages.launch(
            app_kwargs={
                "routes": [channel.ROUTE, wire.ROUTE, *monitor.routes(), *(workshop.routes() if workshop else ())],
                "middleware": [
                    Middleware(Rooted),
                    wire.ANSWERS,
                    Middleware(wire.Lasting),
                    Middleware(Leaving, waiting=waiting, told=told),
                    Middleware(Guard, names=programs.NAMES, hosts=hosts),
                    Middleware(Presence),
                ],
                "exception_handlers": {RequestValidationError: unreadable, 404: absent},
            },
            server_name=in_address(options.host),
            server_port=options.port,
            theme=theme(),
            head=style(),
            favicon_path=STATIC / "icon.svg",  # for what asks for no other
            max_threads=max(200, 2 * options.max_users),  # who waits has one, and can press Stop
            max_file_size=MAX_RUN_FILE,
            state_session_capacity=500,  # a fifth of a megabyte each
            run_history=False,
            footer_links=[],
            share=options.share,
            quiet=True,
            prevent_thread_lock=True,
            show_error=True,
            ssr_mode=False,  # a Space would put Node in front, which passes on none of this server's own addresses
            enable_monitoring=False,
            mcp_server=find_spec("mcp") is not None,
        )
    except OSError:  # taken in the meantime
        _refuse(options.host, options.port)
    signal.signal(signal.SIGINT, lambda *_: asked.set())  # not earlier: Ctrl-C has to end a long wait for a public link
    print(f"Decode Lab is at {pages.local_url.rstrip('/')}", flush=True)
    gc.collect()
    gc.freeze()  # imported objects stay: scanning them takes half a second, in which nobody is answered
    gc.enable()
    if workshop:
        print(workshop.announcement(pages.share_url or pages.local_url, made_up=not key), flush=True)
    _wait_for_a_signal(asked, line)
    line.close(PATIENCE)
    _let_answer(waiting)
    pages.close()
    if uploads.name.startswith(UPLOADS):
        rmtree(uploads, ignore_errors=True)
    gc.unfreeze()  # otherwise Triton's library complains at exit about what it finds


def _refuse(host: str, port: int) -> NoReturn:
    """End where the address cannot be had."""
    print(
        f"app.py: cannot listen on {host}, port {port}: another program has it, or this machine has no such address. "
        "Choose another --port, or another --host.",
        file=sys.stderr,
    )
    sys.exit(2)


def _let_answer(waiting: Collection[str]) -> None:
    """Wait for answers to be delivered: once closed, Gradio gives none, and keeps callers waiting until it ends."""
    until = time.monotonic() + ANSWERING
    while waiting and time.monotonic() < until:
        time.sleep(0.02)


def _wait_for_a_signal(asked: threading.Event, line: Line) -> None:
    """Wait until somebody presses Ctrl-C, or the system asks this process to end."""
    rested = 0
    while not asked.wait(1):  # on Windows, a wait without a timeout is deaf to signals
        rested = 0 if line.inside else rested + 1
        if rested and rested % REST == 0:  # repeatedly: visits shorter than a second were not seen
            give_back()


if __name__ == "__main__":
    main()
