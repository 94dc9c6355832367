"""The articles' claims, checked: ``claims.toml`` says what each states, what is measured, and by which rule.

>>> from lab import load_engine
>>> from lab.claims import CLAIMS
>>> from lab.claims.trial import Trial
>>> CLAIMS["complexity"].check(Trial(lambda pair: load_engine(draft=pair))).verdict
"""

import tomllib
from functools import partial
from pathlib import Path
from typing import Any

from lab.claims import comparisons, counting, exactness, loads, quality, speculation
from lab.claims.claim import Claim
from lab.claims.rule import Rule

_MODULES = (comparisons, counting, exactness, loads, quality, speculation)
MODULES = {module.__name__.rpartition(".")[2]: module for module in _MODULES}
"""Where the experiments are: the data names each as "module.function"."""


def read_claims(data: dict[str, Any]) -> dict[str, Claim]:
    """Claims by id. An entry may take a table from another claim of its kind: ``numbers_of``, ``verdict_of``."""
    found: dict[str, Claim] = {}
    entries = {entry["id"]: entry for entry in data["claims"]}
    for name, entry in entries.items():
        how = dict(entry.get("with", {}))
        if sweep := how.pop("sweep", None):
            how |= data["sweeps"][sweep]
        module, kind = entry["experiment"].split(".")
        numbers = entries[entry.get("numbers_of", name)]["numbers"]
        found[name] = Claim(
            **{field: entry[field] for field in ("id", "topic", "says", "tested", "rule")},
            source=data["articles"][entry["source"]],
            numbers={key: (label, *rest, *("", "measured")[len(rest) :]) for key, (label, *rest) in numbers.items()},
            experiment=partial(getattr(MODULES[module], kind), **how),
            decide=Rule(**entries[entry.get("verdict_of", name)]["verdict"]),
            arithmetic=entry.get("arithmetic", False),
        )
    return found


CLAIMS = read_claims(tomllib.loads(Path(__file__).with_name("claims.toml").read_text("utf-8")))
"""Every claim by its id, topic by topic."""
