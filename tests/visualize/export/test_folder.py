"""The folder of a site: nobody else's files are lost, and a site is written completely or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from visualize.export.folder import FORMAT, MANIFEST, FolderError, check, write

FILES = {"index.html": "<p>1", "runs/a.html": "é", ".nojekyll": ""}


def contents(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): path.read_text("utf-8") for path in folder.rglob("*") if path.is_file()
    }


@pytest.mark.parametrize("there", [False, True])
def test_all_files_are_written_and_listed(tmp_path: Path, there: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # it is looked for from where the command is run
    folder = Path("far/site")
    if there:
        folder.mkdir(parents=True)
    write(folder, FILES)
    found = contents(folder)
    assert json.loads(found.pop(MANIFEST))["files"] == sorted(FILES)
    assert found == FILES
    assert [path.name for path in folder.parent.iterdir()] == ["site"]


def test_a_new_export_replaces_only_the_old_one_of_which_no_page_is_missing_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, FILES)
    mine = {"runs/mine.html": "mine", ".git/HEAD": "mine"}
    (tmp_path / ".git").mkdir()
    for path in mine:
        (tmp_path / path).write_text("mine", "utf-8")
    honest, moved = os.replace, []

    def watched(here: Path, there: Path) -> None:
        assert (tmp_path / "index.html").exists()
        assert tmp_path in here.parents, "on the disk it goes to, such as a USB stick: others refuse to move it"
        moved.append(there)
        honest(here, there)

    monkeypatch.setattr(os, "replace", watched)
    write(tmp_path, {"index.html": "<p>2", "runs/b.html": "b"})
    found = contents(tmp_path)
    assert found.pop(MANIFEST)
    assert found == {"index.html": "<p>2", "runs/b.html": "b"} | mine
    assert len(moved) == 3


@pytest.mark.parametrize("manifest", [None, '{"name": "a site of my own"}', "[]", "[" * 100_000])
def test_a_folder_that_holds_no_site_is_left_alone_unless_forced(tmp_path: Path, manifest: str | None) -> None:
    (tmp_path / "index.html").write_text("mine", "utf-8")
    (tmp_path / "thesis.tex").write_text("mine", "utf-8")
    if manifest:
        (tmp_path / MANIFEST).write_text(manifest, "utf-8")
    before = contents(tmp_path)
    for refuse in (check, lambda folder: write(folder, FILES)):
        with pytest.raises(FolderError, match="not empty and holds no site"):
            refuse(tmp_path)
    assert contents(tmp_path) == before
    write(tmp_path, FILES, force=True)
    assert contents(tmp_path) == before | FILES | {MANIFEST: contents(tmp_path)[MANIFEST]}


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("there", ["file for folder", "folder for file", "link for folder", "broken link for folder"])
def test_paths_in_the_way_are_reported_before_anything_is_changed(tmp_path: Path, there: str, known: bool) -> None:
    """Paths that every site has are checked before the site is made."""
    folder, elsewhere = tmp_path / "site", tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "a.html").write_text("mine", "utf-8")
    write(folder, {"old.html": "old"})
    name = "runs" if known else "others"
    match there:
        case "file for folder":
            (folder / name).write_text("mine", "utf-8")
        case "folder for file":
            name = "index.html" if known else "other.html"
            (folder / name).mkdir()
        case _:
            to = tmp_path / "nowhere" if there.startswith("broken") else elsewhere
            (folder / name).symlink_to(to, target_is_directory=True)
    before = contents(tmp_path)
    if known:
        with pytest.raises(FolderError, match=f"{name} is in the way"):
            check(folder, force=True)
    with pytest.raises(FolderError, match=f"{name} is in the way"):
        write(folder, {"a.html": "", "others/a.html": "", "other.html": "", "runs/a.html": ""}, force=True)
    assert contents(tmp_path) == before


def test_what_the_disk_refuses_is_said_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (file := tmp_path / "file").write_text("mine", "utf-8")
    for folder, says in (
        (file, "is a file"),
        (file / "site", "cannot be written: Not a directory"),
        (tmp_path / ("a" * 300), "cannot be written: File name too long"),
    ):
        with pytest.raises(FolderError, match=says):
            check(folder, force=True)
    site = tmp_path / "site"
    write(site, FILES)
    before, honest = contents(tmp_path), Path.write_text

    def fail(path: Path, *args: object, **how: object) -> int:
        if path.name == "b.html":
            raise OSError(28, "No space left on device")
        return honest(path, *args, **how)

    monkeypatch.setattr(Path, "write_text", fail)
    with pytest.raises(FolderError, match="No space left"):
        write(site, {"index.html": "<p>2", "runs/b.html": "b"})
    assert contents(tmp_path) == before, "the old site stays"


PATHS = st.sampled_from(["../mine", "/etc/mine", "a/../../mine", "..", ".", "", "sub/../../mine", "link/mine"])


@given(st.one_of(st.lists(PATHS | st.integers() | st.none()), st.integers(), st.none(), st.text()))
def test_a_tampered_manifest_cannot_delete_files_outside_the_site(
    tmp_path_factory: pytest.TempPathFactory, files: object
) -> None:
    top = tmp_path_factory.mktemp("top")
    folder = top / "site"
    folder.mkdir()
    (top / "mine").write_text("mine", "utf-8")
    (folder / "link").symlink_to(top, target_is_directory=True)
    (folder / MANIFEST).write_text(json.dumps({"format": FORMAT, "files": files}), "utf-8")
    write(folder, FILES, force=True)
    assert (top / "mine").read_text("utf-8") == "mine"
    assert (folder / "index.html").read_text("utf-8") == FILES["index.html"]
