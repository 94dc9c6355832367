"""What the packages of ``requirements-test.txt`` bring in turn, in the versions installed here, as pip's constraints:
``python -m tests.constraints > constraints.txt``, in an environment that was made anew without them."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
HEAD = "# What the lab's packages and its tests' bring, for pip's -c: python -m tests.constraints > constraints.txt"


def asked(name: str) -> Iterator[Requirement]:
    """The requirements in a file, and in those that it includes."""
    for line in (ROOT / name).read_text("utf-8").splitlines():
        if line.startswith("-r "):
            yield from asked(line.removeprefix("-r "))
        elif line and not line.startswith("#"):
            yield Requirement(line)


def constraints() -> list[str]:
    """A line for each package that no file asks for by itself.

    Raises:
        PackageNotFoundError: a package that is needed is not installed.
    """
    direct = list(asked("requirements-test.txt"))
    waiting, seen = [(requirement, "") for requirement in direct], set()
    while waiting:
        requirement, wanted_by = waiting.pop()
        if requirement.marker and not requirement.marker.evaluate({"extra": wanted_by}):
            continue
        name = canonicalize_name(requirement.name)
        for extra in {"", *requirement.extras} - {extra for known, extra in seen if known == name}:
            seen.add((name, extra))
            waiting += [(Requirement(line), extra) for line in distribution(name).requires or ()]
    names = {name for name, _ in seen} - {canonicalize_name(requirement.name) for requirement in direct}
    return [f"{name}=={distribution(name).version}" for name in sorted(names)]


if __name__ == "__main__":
    print(HEAD, *constraints(), sep="\n")
