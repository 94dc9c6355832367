"""``python -m lab.export site/``: an entry point, and the only place in ``lab`` that imports ``visualize``.

Nothing imports it. It runs ``visualize.export``: the lab as a folder of files that needs no server.
"""

import signal

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it quietly during the start; later see ``main``

from transformers.utils import logging as transformers_logging


def main() -> None:
    """See ``python -m lab.export --help``."""
    from visualize.export.__main__ import main as export  # not above: importing this file imports no page

    signal.signal(signal.SIGINT, signal.default_int_handler)  # from here on the export reports an interrupt itself
    transformers_logging.disable_progress_bar()  # the export reports its own progress
    export()


if __name__ == "__main__":
    main()
