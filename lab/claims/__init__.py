"""The articles' claims, checked: what was said, an experiment that tests it on this machine, and a verdict by rule.

>>> from lab import load_engine
>>> from lab.claims import CLAIMS
>>> from lab.claims.trial import Trial
>>> CLAIMS["complexity"].check(Trial(lambda pair: load_engine(draft=pair))).verdict
"""

from __future__ import annotations

from lab.claims import (
    caching,
    exactness,
    formats,
    gains,
    heads,
    operations,
    paging,
    rollback,
    size,
    speculation,
    together,
    windows,
)
from lab.claims.claim import Claim

CLAIMS: dict[str, Claim] = {
    claim.id: claim
    for claim in (
        *operations.CLAIMS,
        *caching.CLAIMS,
        *size.CLAIMS,
        *heads.CLAIMS,
        *formats.CLAIMS,
        *speculation.CLAIMS,
        *gains.CLAIMS,
        *windows.CLAIMS,
        *exactness.CLAIMS,
        *rollback.CLAIMS,
        *paging.CLAIMS,
        *together.CLAIMS,
    )
}
"""Every claim by its id, topic by topic."""
