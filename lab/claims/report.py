"""Claims checked in a terminal."""

import argparse
import math
import textwrap
from collections.abc import Callable, Sequence

from lab.claims import CLAIMS
from lab.claims.claim import WORDS, Number
from lab.claims.trial import Trial
from lab.engine.engine import Engine
from lab.errors import LabError

WIDE = 100


def read_claims(args: argparse.Namespace) -> dict[str, object]:
    return {"ids": args.claim, "small": args.small}


def run_claims(
    load: Callable[[str], Engine], ids: Sequence[str], report: Callable[[str], None], *, small: bool = False
) -> dict[str, object]:
    """Check claims one after another; what several of them rest on is measured once.

    Args:
        load: see ``Trial``.

    Returns:
        A JSON-ready dict: ``claims``, each with its ``numbers`` and ``verdict``, or with the ``problem`` that left it
        unchecked.
    """
    drafts: dict[str, str] = {}

    def loaded(pair: str) -> Engine:
        engine = load(pair)
        drafts[pair] = engine.draft.name
        return engine

    loaded("matched")  # else what is wrong with it would be reported once for every claim
    trial = Trial(loaded, small=small)
    rows = []
    for place, name in enumerate(ids, 1):
        claim = CLAIMS[name]
        report(f"{place} of {len(ids)}: {name}")
        row: dict[str, object] = {field: getattr(claim, field) for field in ("id", "says", "source", "tested", "rule")}
        try:
            checked = claim.check(trial)
        except LabError as error:
            rows.append(row | {"problem": str(error)})
            continue
        row |= {"verdict": checked.verdict._asdict(), "seconds": checked.seconds}
        rows.append(row | {"numbers": [_as_json(number) for number in checked.found.numbers]})
    return {"drafts": drafts, "small": small, "claims": rows}


def _as_json(number: Number) -> dict[str, object]:
    """A number for JSON, which has no infinity: null says that there is none."""
    value = None if math.isinf(number.value) else number.value
    return number._asdict() | {"value": value, "text": number.text, "spread": number.spread}


def format_claims(result: dict) -> str:
    """The verdicts first, in a table; then each claim with its numbers."""
    lines = ["Sizes for a test: what is measured here is not to be trusted.", ""] if result["small"] else []
    lines += [
        f"{claim['id']:20} {WORDS[claim['verdict']['word']] if 'verdict' in claim else 'not checked'}"
        for claim in result["claims"]
    ]
    for claim in result["claims"]:
        lines += ["", f"{claim['id']}: {claim['says']}", f"  {claim['source']}"]
        if "problem" in claim:
            lines += _wrapped("not checked", claim["problem"])
            continue
        word, why, needs = claim["verdict"].values()
        for title, text in (("tested", claim["tested"]), ("rule", claim["rule"])):
            lines += _wrapped(title, text)
        lines += [
            f"    {number['label']}: {number['text']}{number['spread'] and ', ' + number['spread']} ({number['kind']})"
            for number in claim["numbers"]
        ]
        lines += _wrapped(WORDS[word], why)
        if needs:
            lines += _wrapped("it would take", needs)
    return "\n".join(lines)


def _wrapped(title: str, text: str) -> list[str]:
    return textwrap.wrap(f"{title}: {text}", WIDE, initial_indent="  ", subsequent_indent="    ")
