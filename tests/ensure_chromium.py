"""Find a Chromium for the browser tests, or install one, or say what to install.

Prints the path of the browser as its last line.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

PACKAGES = ("chromium-headless-shell", "chromium")
"""Debian's, the better first: Chromium without windows runs the same pages in three quarters of the time."""
NAMES = (*PACKAGES, "chromium-browser", "google-chrome", "google-chrome-stable")


def find() -> str | None:
    """A browser named by $CHROMIUM, found on the PATH, or downloaded earlier by Playwright."""
    named = os.environ.get("CHROMIUM")
    if named and shutil.which(named):
        return shutil.which(named)
    on_path = next((path for name in NAMES if (path := shutil.which(name))), None)
    return on_path or playwright_own()


def playwright_own() -> str | None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        path = playwright.chromium.executable_path
    return path if path and os.path.exists(path) else None


def install() -> None:
    """Install one of Debian's packages where that is permitted, or else download Playwright's own."""
    apt = shutil.which("apt-get")
    sudo = [] if hasattr(os, "geteuid") and os.geteuid() == 0 else [shutil.which("sudo") or "", "-n"]
    if apt and (not sudo or sudo[0]):
        environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        run = [*sudo, apt]
        updated = subprocess.run([*run, "update", "-qq"], env=environment, stdout=sys.stderr)
        for package in PACKAGES if updated.returncode == 0 else ():
            if (
                subprocess.run([*run, "install", "-y", "-qq", package], env=environment, stdout=sys.stderr).returncode
                == 0
            ):
                return
    if not find():
        subprocess.run([sys.executable, "-m", "playwright", "install", "chromium"], stdout=sys.stderr)


def main() -> int:
    path = find()
    if not path:
        print("No Chromium found: installing one for the browser tests.", file=sys.stderr)
        install()
        path = find()
    if not path:
        print(
            "The browser tests need a Chromium and none could be installed. Install the package 'chromium' "
            "(or Google Chrome), or set CHROMIUM to the path of one, and run `make test` again.",
            file=sys.stderr,
        )
        return 1
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
