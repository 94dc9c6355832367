"""Claims checked in a terminal: the verdicts as a table, and their numbers in the record."""

import argparse
import math
from collections.abc import Callable, Sequence

from lab.claims import CLAIMS
from lab.claims.claim import WORDS, Number
from lab.claims.trial import Trial
from lab.engine.engine import Engine
from lab.errors import ConfigError, LabError


def read_claims(args: argparse.Namespace) -> dict[str, object]:
    """The claims to check. Raises ConfigError: there is no such claim."""
    if unknown := [name for name in args.claim or () if name not in CLAIMS]:
        raise ConfigError(f"there is no claim {unknown[0]!r}. There are {', '.join(CLAIMS)}.")
    return {"ids": args.claim or list(CLAIMS), "small": args.small}


def run_claims(
    load: Callable[[str], Engine], ids: Sequence[str], report: Callable[[str], None], *, small: bool = False
) -> dict[str, object]:
    """Check claims one after another; what several of them rest on is measured once. ``load``: see ``Trial``.

    Returns:
        A JSON-ready dict: ``claims``, each with its verdict, why, what it would take, and its ``numbers``; or with the
        problem that left it unchecked. ``small``: its figures are not to be trusted.
    """
    drafts: dict[str, str] = {}

    def loaded(pair: str) -> Engine:
        engine = load(pair)
        drafts[pair] = engine.draft.name
        return engine

    loaded("matched")  # else what is wrong with it would be reported once for every claim
    trial = Trial(loaded, small=small)
    rows: list[dict[str, object]] = []
    for place, name in enumerate(ids, 1):
        report(f"{place} of {len(ids)}: {name}")
        try:
            checked = CLAIMS[name].check(trial)
        except LabError as error:
            rows.append({"id": name, "verdict": "not checked", "why": str(error)})
            continue
        word, why, needs = checked.verdict
        rows.append({"id": name, "verdict": WORDS[word], "why": why, "needs": needs, "seconds": checked.seconds})
        rows[-1]["numbers"] = [_as_json(number) for number in checked.found.numbers]
    return {"drafts": drafts, "small": small, "claims": rows}


def _as_json(number: Number) -> dict[str, object]:
    """A number for JSON, which has no infinity: null says that there is none."""
    value = None if math.isinf(number.value) else number.value
    return number._asdict() | {"value": value, "text": number.text, "spread": number.spread}
