"""Decode Lab: starts the page. ``python app.py --help`` lists the options."""

import gc
import os
import secrets
import signal
import sys
from contextlib import suppress
from pathlib import Path
from tempfile import gettempdir

# Of the libraries' variables, too, an empty one counts as unset.
if empty := [name for name, value in os.environ.items() if not value and name.startswith(("GRADIO_", "HF_", "OMP_"))]:
    for name in empty:
        del os.environ[name]
os.environ["GRADIO_ANALYTICS_ENABLED"] = os.environ.get("GRADIO_ANALYTICS_ENABLED", "False")
# Gradio's own statistics, which nothing uses, would go through the last ten thousand events after every event.
os.environ["GRADIO_ANALYTICS_MAX_EVENTS"] = os.environ.get("GRADIO_ANALYTICS_MAX_EVENTS", "1")
os.environ["GRADIO_ANALYTICS_CACHE_FREQUENCY"] = os.environ.get("GRADIO_ANALYTICS_CACHE_FREQUENCY", "1000000000")
# Else an MCP call, with Gradio as its own client, asks the hub.
os.environ["HF_HUB_DISABLE_TELEMETRY"] = os.environ.get("HF_HUB_DISABLE_TELEMETRY", "1")

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C during start-up ends silently; later see ``serve``
    # Gradio's own folder for uploads, /tmp/gradio, belongs to whoever on this machine used Gradio first.
    try:
        own_uploads = f"{gettempdir()}/decode-lab-uploads-{secrets.token_hex(8)}"
    except OSError:
        print("app.py: no folder for temporary files can be written to. Set TMPDIR to one that can.", file=sys.stderr)
        sys.exit(2)
    os.environ["GRADIO_TEMP_DIR"] = os.environ.get("GRADIO_TEMP_DIR", own_uploads)
    gc.disable()  # imported objects stay: scanning them again and again takes a quarter of the start-up

from lab.backends.cpu.cpu_count import cores

# The engine leaves one core to the server: torch's threads wait for each other at every
# operation, and a thread that has to share its core holds up all of them.
os.environ["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", str(max(1, cores() - 1)))

from visualize.options import (
    KEY,
    SHARED,
    ask_directly,
    borrows_a_gpu,
    can_listen,
    is_private,
    known_hosts,
    read_options,
    source_address,
)

if borrows_a_gpu(os.environ):  # before anything asks torch for a GPU: afterwards no forked process could use one
    import spaces  # noqa: F401
elif __name__ == "__main__" and read_options(None, os.environ).device == "cpu":
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # hide GPUs that are not to be used: the pages offer what works here

import gradio as gr

from lab import LabError
from lab.registry import EMBEDDED, Engines, fitting_pairs, named_pair
from lab.settings import SETTINGS
from lab.util.stdio import print_utf8
from lab.vllm.client import Server
from visualize.api import endpoints as programs
from visualize.jobs.job_queue import JobQueue
from visualize.jobs.reducer_process import ReducerClient
from visualize.page_list import LINKS, PAGES
from visualize.pages.capstone import page as capstone
from visualize.pages.claims import page as claims
from visualize.pages.compare import page as compare
from visualize.pages.deploy import page as deploy
from visualize.pages.glossary import page as glossary
from visualize.pages.lab import page as lab
from visualize.pages.lessons import instructor as instructor
from visualize.pages.lessons import page as lessons
from visualize.pages.lessons.answer_key import Answers
from visualize.pages.memory import page as memory
from visualize.pages.mistakes import page as mistakes
from visualize.pages.pool import page as pool
from visualize.pages.server import page as server
from visualize.pages.workshop import page as room
from visualize.prometheus import EngineMetrics
from visualize.server import refuse, serve
from visualize.theme import style, theme
from visualize.workshop import Workshop


def build(
    engines: Engines,
    embedded: Engines,
    queue: JobQueue,
    attached: Server | None = None,
    borrowed: EngineMetrics | None = None,
    workshop: Workshop | None = None,
    *,
    reported: dict[str | None, str],
) -> gr.Blocks:
    """All pages: the Lab at the root, every other page at its own address. Lessons and claims use the embedded pair,
    the other pages any of ``engines``. There is one ``queue`` for all, because there is one machine. ``attached``: a
    vLLM server to watch. ``borrowed``: counts the Lab's runs, each of which borrows a GPU. ``workshop``: the one that
    visitors join. ``reported``: see ``Programs``.
    """
    load = engines
    if borrowed:
        from visualize.jobs.zerogpu import borrowing  # a package that only such a Space has

        load = borrowing(engines, borrowed.watch)
    answers = Answers()
    others = {
        "Compare": lambda: compare.build(pages, engines, queue, engines.offered),
        "Lessons": lambda: lessons.build(pages, embedded, queue, answers),
        "Instructor": lambda: instructor.build(pages, embedded, queue, answers),
        "Capstone": lambda: capstone.build(pages, embedded, queue),
        "Pool": lambda: pool.build(pages, engines, queue),
        "Memory": lambda: memory.build(pages),
        "Claims": lambda: claims.build(pages, embedded, queue),
        "Mistakes": lambda: mistakes.build(pages, embedded, queue),
        "Deploy": lambda: deploy.build(pages),
        "Glossary": lambda: glossary.build(pages),
    }
    if attached:
        PAGES["Server"] = "server"
        others["Server"] = lambda: server.build(pages, attached, queue)
    if workshop:
        PAGES["Room"] = "room"
        others["Room"] = lambda: room.build(pages)
    pages = lab.build(load, queue, engines.offered, any_pair=engines.any_pair, workshop=workshop)
    for name in others:
        pages.route(name, f"/{name.lower()}", show_in_navbar=False)
    with pages:  # once for all of them: at each end Gradio makes the whole app, which takes a fifth of a second
        for name, lay_out in others.items():
            pages.current_page = name.lower()
            lay_out()
        programs.build(pages, engines, queue, tuple(engines.offered), reported)
    return pages


def main(arguments: list[str] | None = None) -> None:
    """Serve the pages until interrupted."""
    options = read_options(arguments, os.environ)
    print_utf8()
    if not can_listen(options.host, options.port):  # asked before models are loaded, which may take minutes
        refuse(options)
    ask_directly(options.host, os.environ)
    borrowed = borrows_a_gpu(os.environ)  # if so, this process itself never touches one
    place = {"device": "cpu" if borrowed else options.device, "dtype": options.dtype}
    chosen = options.target or options.draft
    if borrowed and chosen:
        sys.exit("app.py: a ZeroGPU Space runs the embedded pair: leave DECODE_LAB_TARGET and DECODE_LAB_DRAFT unset.")
    offered = {SETTINGS["pair"].default: named_pair(options.target, options.draft)} if chosen else EMBEDDED
    with suppress(OSError):  # each run then tries again, and says in the log what it does without
        ReducerClient.start()
    queue = JobQueue(options.max_users, together=options.workshop)
    hosts = known_hosts(options, os.environ)
    workshop = Workshop(queue, options.host, os.environ.get(KEY), hosts) if options.workshop else None
    monitor = EngineMetrics(queue)
    monitors = [monitor, workshop.room] if workshop else [monitor]
    private = is_private(options, os.environ)
    if private or place["device"].startswith("cuda"):  # a shared CPU is not for large models that anybody asks for
        offered = offered | fitting_pairs(**place)
    engines = Engines(offered, any_pair=private, monitors=monitors, **place)
    embedded = Engines(monitors=monitors, **place) if chosen else engines
    if chosen:
        try:
            engines(SETTINGS["pair"].default)
        except LabError as error:
            print(f"app.py: {error}", file=sys.stderr)
            sys.exit(2)
    if options.share:
        print(SHARED, file=sys.stderr)
    reported: dict[str | None, str] = {}
    if source := options.repository or source_address(Path(__file__).parent, os.environ):
        LINKS["Repository"] = source
    pages = build(engines, embedded, queue, options.attach, monitor if borrowed else None, workshop, reported=reported)
    serve(
        pages,
        options,
        queue,
        reported,
        names=programs.NAMES,
        routes=[*monitor.routes(), *(workshop.routes() if workshop else ())],
        announcement=workshop.announcement if workshop else None,
        theme=theme(),
        head=style(),
    )


if __name__ == "__main__":
    main()
