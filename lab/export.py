"""``python -m lab.export site/``: a door, and the one place of this room that leads to ``visualize``.

Nothing imports it. What it opens is ``visualize.export``: the lab as a folder of files that needs no server.
"""

from __future__ import annotations

import signal

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends a start without a word; later see ``main``

from transformers.utils import logging as transformers_logging


def main() -> None:
    """See ``python -m lab.export --help``."""
    from visualize.export.__main__ import main as export  # not above: importing this room brings no page with it

    signal.signal(signal.SIGINT, signal.default_int_handler)  # from here on the export says what became of it
    transformers_logging.disable_progress_bar()  # the export tells itself how far it is
    export()


if __name__ == "__main__":
    main()
