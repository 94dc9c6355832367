"""The lab as a folder of files that needs no server."""

import functools
import sys
from dataclasses import replace

from lab import Engine, load_engine
from lab.cli.arguments import READ_ENOUGH, Parser, path
from lab.errors import LabError
from lab.util.stdio import Output, print_notes, print_utf8
from visualize.export import folder
from visualize.export.site import QUICK, Terminal, Wanted, make
from visualize.recorded_results import run_files


def main(arguments: list[str] | None = None) -> None:
    """Make a site. Exits with 2 and a sentence if that cannot be done, with 130 if it is interrupted, with 141 if the
    reader of the output has closed it."""
    parser = Parser(
        prog="python -m lab.export",
        description="Write recorded runs with their player, the lessons and the claims as a folder of files that needs "
        "no server: for a static Space, GitHub Pages or a USB stick. Everything is run on this machine first, which "
        "takes some minutes.",
    )
    parser.add_argument("folder", type=path, metavar="site/", help="where to write: a new folder, or an earlier site's")
    parser.add_argument("--run", type=path, action="append", default=[], metavar="FILE", help="a saved run to add")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="only two runs, two lessons and the claims that are arithmetic: takes seconds",
    )
    parser.add_argument(
        "--force", action="store_true", help="write into a folder that holds other files, over those of the same names"
    )
    options = parser.parse_args(arguments)
    print_utf8()
    wanted = replace(QUICK if options.quick else Wanted(), files=(*run_files(), *options.run))

    @functools.cache
    def load(pair: str) -> Engine:
        return load_engine(draft=pair)

    terminal = Terminal(sys.stderr, parts=3 + len(wanted.lessons))
    try:
        folder.check(options.folder, options.force)
        folder.write(options.folder, make(load, wanted, terminal), options.force)
    except LabError as error:
        terminal.step("")
        parser.error(str(error))
    except KeyboardInterrupt:
        terminal.step("")
        print_notes(["Stopped. Nothing was written."])
        sys.exit(130)
    terminal.step("")
    output = Output()
    output.say(f"Written: {options.folder / 'index.html'}")
    if isinstance(output.failure, BrokenPipeError):
        sys.exit(READ_ENOUGH)
    if output.failure:
        parser.error(f"the output cannot be written: {output.failure.strerror}.")


if __name__ == "__main__":
    main()
