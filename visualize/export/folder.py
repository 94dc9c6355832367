"""The folder that a site is written to. Anything else in it stays as it is."""

import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from lab.errors import LabError

MANIFEST = "site.json"
"""Names the site's files, so that the next export knows which of the folder's are its own."""
FORMAT = "decode-lab-site"
EVERY = ("README.md", "index.html", "claims.html", "assets/site.css", "runs/plain.html", "lessons/3.html", MANIFEST)
"""Files of every site: whatever is in their way is found before anything is made."""


class FolderError(LabError):
    """A folder that no site can be written to."""


def check(folder: Path, force: bool = False) -> None:
    """Check that a site may be written there, and can be.

    Raises:
        FolderError: there is a file of that name, a dangling link, or, without ``force``, a folder that is not empty
            and holds no site; something is in the way of a folder or a file of the site; or the disk refuses.
    """
    with _refusals(folder):
        if nowhere := [place for place in (folder, *folder.parents) if place.is_symlink() and not place.exists()]:
            raise FolderError(f"{nowhere[0]} is a link that leads nowhere. Name a folder.")
        if folder.exists() and not folder.is_dir():
            raise FolderError(f"{folder} is a file. Name a folder.")
        if folder.is_dir() and any(folder.iterdir()) and not _manifest(folder) and not force:
            raise FolderError(
                f"{folder} is not empty and holds no site. Name another folder; or --force writes the site into it, "
                "over files of the same names, and leaves the others."
            )
        _check_way(folder, EVERY)
        nearest = next(place for place in (folder, *folder.parents) if place.exists())
        os.rmdir(_beside(nearest))


def write(folder: Path, files: Mapping[str, str], force: bool = False) -> None:
    """Write all files and the manifest. The folder changes only once all of them are on the disk.

    Args:
        files: text by path in the folder, with "/" between its parts.

    Raises:
        FolderError: as ``check``; or the disk refuses.
    """
    check(folder, force)
    files = {**files, MANIFEST: json.dumps({"format": FORMAT, "files": sorted(files)}, indent=1) + "\n"}
    with _refusals(folder):
        _check_way(folder, files)
        folder.parent.mkdir(parents=True, exist_ok=True)
        made = _beside(folder if folder.exists() else folder.parent)
        try:
            for path, text in files.items():
                (made / path).parent.mkdir(parents=True, exist_ok=True)
                (made / path).write_text(text, "utf-8", newline="\n")
            for path in _manifest(folder) - files.keys():
                (folder / path).unlink()
            for path in files:
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                os.replace(made / path, folder / path)
        finally:
            shutil.rmtree(made)


@contextmanager
def _refusals(folder: Path) -> Iterator[None]:
    """Raise what the disk refuses as a FolderError: a name that is too long, a folder that may not be read."""
    try:
        yield
    except OSError as error:
        raise FolderError(f"{folder} cannot be written: {error.strerror}.") from error


def _check_way(folder: Path, paths: Iterable[str]) -> None:
    """Check that each path leads to a file or to nothing, through folders that are not links. Raises FolderError."""
    for path in paths:
        folders = [folder / part for part in PurePosixPath(path).parents if part.name]
        in_the_way = [place for place in folders if place.is_symlink() or (place.exists() and not place.is_dir())]
        if in_the_way or (folder / path).is_dir():
            place = in_the_way[0] if in_the_way else folder / path
            raise FolderError(f"{place} is in the way: the site has something else of that name. Name another folder.")


def _manifest(folder: Path) -> set[str]:
    """The files of the site that is there; none if there is none, or it is another program's. A manifest that was
    tampered with leads to no file outside the folder."""
    try:
        listed = json.loads((folder / MANIFEST).read_text("utf-8"))
        files = {MANIFEST, *map(str, listed["files"])} if listed["format"] == FORMAT else ()
        found, within = {path: folder / path for path in files}, folder.resolve()
        return {path for path, file in found.items() if file.is_file() and file.resolve().is_relative_to(within)}
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return set()


def _beside(place: Path) -> Path:
    """A new folder in ``place``, and so on the same disk: only there can files be moved atomically."""
    return Path(tempfile.mkdtemp(prefix=".decode-lab-", dir=place))
