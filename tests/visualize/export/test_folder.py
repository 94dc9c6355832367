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


def listed(folder: Path) -> list[str]:
    return json.loads((folder / MANIFEST).read_text("utf-8"))["files"]


@pytest.mark.parametrize("there", [False, True])
def test_all_files_are_written_and_listed(tmp_path: Path, there: bool) -> None:
    folder = tmp_path / "far" / "site"
    if there:
        folder.mkdir(parents=True)
    write(folder, FILES)
    found = contents(folder)
    assert listed(folder) == sorted(FILES)
    del found[MANIFEST]
    assert found == FILES
    assert [path.name for path in folder.parent.iterdir()] == ["site"]


def test_a_new_export_replaces_only_the_old_one(tmp_path: Path) -> None:
    write(tmp_path, FILES)
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "HEAD").write_text("mine", "utf-8")
    (tmp_path / "runs" / "mine.html").write_text("mine", "utf-8")
    write(tmp_path, {"index.html": "<p>2", "runs/b.html": "b"})
    found = contents(tmp_path)
    assert found.pop(MANIFEST)
    assert found == {"index.html": "<p>2", "runs/b.html": "b", "runs/mine.html": "mine", ".git/HEAD": "mine"}


def test_no_page_is_missing_while_a_new_site_takes_the_place_of_the_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, FILES)
    honest, moved = os.replace, []

    def watched(here: Path, there: Path) -> None:
        assert all((tmp_path / path).exists() for path in FILES)
        moved.append(there)
        honest(here, there)

    monkeypatch.setattr(os, "replace", watched)
    write(tmp_path, FILES)
    assert len(moved) == len(FILES) + 1


def test_a_folder_is_looked_for_from_where_the_command_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in (Path("far/site"), Path()):
        check(folder, force=True)
        write(folder, FILES, force=True)
        assert (folder / "index.html").exists()


def test_a_folder_that_holds_no_site_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("mine", "utf-8")
    (tmp_path / "thesis.tex").write_text("mine", "utf-8")
    before = contents(tmp_path)
    for refuse in (check, lambda folder: write(folder, FILES)):
        with pytest.raises(FolderError, match="not empty and holds no site"):
            refuse(tmp_path)
    assert contents(tmp_path) == before
    write(tmp_path, FILES, force=True)
    assert contents(tmp_path)["thesis.tex"] == "mine"
    assert contents(tmp_path)["index.html"] == FILES["index.html"]


@pytest.mark.parametrize("place", ["site", "site/below"])
@pytest.mark.parametrize("to", ["nowhere", "site"])
def test_a_broken_symlink_is_refused_before_anything_is_created(tmp_path: Path, to: str, place: str) -> None:
    (tmp_path / "site").symlink_to(tmp_path / to)
    with pytest.raises(FolderError, match="site is a link that leads nowhere"):
        check(tmp_path / place)
    assert os.listdir(tmp_path) == ["site"]


@pytest.mark.parametrize("manifest", ['{"name": "a site of my own"}', "[]", "[" * 100_000])
def test_a_manifest_of_another_program_does_not_make_a_site(tmp_path: Path, manifest: str) -> None:
    (tmp_path / MANIFEST).write_text(manifest, "utf-8")
    (tmp_path / "index.html").write_text("mine", "utf-8")
    with pytest.raises(FolderError, match="holds no site"):
        write(tmp_path, FILES)
    assert contents(tmp_path)["index.html"] == "mine"


@pytest.mark.parametrize("site", [False, True])
@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("there", ["file for folder", "folder for file", "link for folder", "broken link for folder"])
def test_paths_in_the_way_are_reported_before_anything_is_changed(
    tmp_path: Path, there: str, known: bool, site: bool
) -> None:
    """Paths that every site has are checked before the site is made."""
    folder, elsewhere = tmp_path / "site", tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "a.html").write_text("mine", "utf-8")
    folder.mkdir()
    if site:
        write(folder, {"old.html": "old"})
    name = "runs" if known else "others"
    match there:
        case "file for folder":
            (folder / name).write_text("mine", "utf-8")
        case "folder for file":
            name = "index.html" if known else "other.html"
            (folder / name).mkdir()
        case "link for folder":
            (folder / name).symlink_to(elsewhere, target_is_directory=True)
        case "broken link for folder":
            (folder / name).symlink_to(tmp_path / "nowhere", target_is_directory=True)
    before = contents(tmp_path)
    if known:
        with pytest.raises(FolderError, match=f"{name} is in the way"):
            check(folder, force=True)
    with pytest.raises(FolderError, match=f"{name} is in the way"):
        write(folder, {"a.html": "", "others/a.html": "", "other.html": "", "runs/a.html": ""}, force=True)
    assert contents(tmp_path) == before
    assert (elsewhere / "a.html").read_text("utf-8") == "mine"


def test_a_site_is_staged_on_the_disk_it_goes_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An existing folder may be on another disk, such as a USB stick."""
    folder = tmp_path / "stick"
    folder.mkdir()
    honest = os.replace

    def across(here: Path, there: Path) -> None:
        if folder not in here.parents:
            raise OSError(18, "Invalid cross-device link")
        honest(here, there)

    monkeypatch.setattr(os, "replace", across)
    write(folder, FILES)
    assert contents(folder)["index.html"] == FILES["index.html"]
    assert not list(folder.glob(".decode-lab-*"))


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "site"
    path.write_text("mine", "utf-8")
    for force in (False, True):
        with pytest.raises(FolderError, match="is a file"):
            check(path, force)
    assert path.read_text("utf-8") == "mine"


@pytest.mark.parametrize("barred", ["iterdir", "is_dir"])
def test_a_folder_that_may_not_be_read_or_entered_is_refused_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, barred: str
) -> None:
    """As for anybody but the root, who may read everything."""
    inside, honest = tmp_path / "index.html", getattr(Path, barred)

    def ask(path: Path) -> object:
        if path in ((tmp_path,) if barred == "iterdir" else (inside,)):
            raise PermissionError(13, "Permission denied")
        return honest(path)

    monkeypatch.setattr(Path, barred, ask)
    with pytest.raises(FolderError, match="cannot be written: Permission denied"):
        check(tmp_path)


def test_a_failed_write_leaves_the_old_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "site"
    write(folder, FILES)
    before, honest = contents(folder), Path.write_text

    def fail(path: Path, *args: object, **how: object) -> int:
        if path.name == "b.html":
            raise OSError(28, "No space left on device")
        return honest(path, *args, **how)

    monkeypatch.setattr(Path, "write_text", fail)
    with pytest.raises(FolderError, match="No space left"):
        write(folder, {"index.html": "<p>2", "runs/b.html": "b"})
    assert contents(folder) == before
    assert [path.name for path in tmp_path.iterdir()] == ["site"]


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
    write(folder, FILES)
    assert (top / "mine").read_text("utf-8") == "mine"
    assert (folder / "index.html").read_text("utf-8") == FILES["index.html"]
