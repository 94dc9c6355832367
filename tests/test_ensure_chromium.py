"""The browser tests are never skipped silently: a Chromium is found, installed, or asked for."""

from __future__ import annotations

import pytest

from tests import ensure_chromium


@pytest.fixture
def bare(monkeypatch, tmp_path):
    """A machine without a browser or anything that could install one."""
    monkeypatch.delenv("CHROMIUM", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(ensure_chromium, "playwright_own", lambda: None)
    return tmp_path


def test_a_browser_on_the_path_is_used(bare, capsys):
    browser = bare / "chromium"
    browser.write_text("#!/bin/sh\n")
    browser.chmod(0o755)
    assert ensure_chromium.main() == 0
    assert capsys.readouterr().out.strip() == str(browser)


def test_of_several_browsers_the_one_without_windows_is_used(bare, capsys):
    for name in ("google-chrome", "chromium-headless-shell", "chromium"):
        (bare / name).write_text("#!/bin/sh\n")
        (bare / name).chmod(0o755)
    assert ensure_chromium.main() == 0
    assert capsys.readouterr().out.strip() == str(bare / "chromium-headless-shell")


def test_where_there_is_no_package_of_one_without_windows_the_other_is_installed(bare, monkeypatch, capfd):
    """As on Ubuntu, and on older releases of Debian."""
    apt = bare / "apt-get"
    apt.write_text(
        '#!/bin/sh\n[ "$1" = update ] && exit\nfor last; do :; done\n'
        f'[ "$last" = chromium ] && echo "#!/bin/sh" >{bare}/chromium && /bin/chmod +x {bare}/chromium\n'
    )
    apt.chmod(0o755)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert ensure_chromium.main() == 0
    assert capfd.readouterr().out.strip() == str(bare / "chromium")


def test_a_browser_named_by_chromium_comes_first(bare, monkeypatch, capsys):
    for name in ("chromium", "other"):
        (bare / name).write_text("#!/bin/sh\n")
        (bare / name).chmod(0o755)
    monkeypatch.setenv("CHROMIUM", str(bare / "other"))
    assert ensure_chromium.main() == 0
    assert capsys.readouterr().out.strip() == str(bare / "other")


def test_a_missing_browser_is_installed(bare, monkeypatch, capsys):
    def install():
        (bare / "chromium").write_text("#!/bin/sh\n")
        (bare / "chromium").chmod(0o755)

    monkeypatch.setattr(ensure_chromium, "install", install)
    assert ensure_chromium.main() == 0
    assert capsys.readouterr().out.strip() == str(bare / "chromium")


def test_if_installing_fails_it_says_what_to_install(bare, monkeypatch, capsys):
    monkeypatch.setattr(ensure_chromium, "install", lambda: None)
    assert ensure_chromium.main() == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert "Install the package 'chromium'" in said.err
