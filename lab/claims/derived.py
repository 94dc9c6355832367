"""Numbers of an article, and what follows from them by arithmetic."""

from collections.abc import Mapping

from lab.claims.claim import Figures
from lab.claims.counting import token_bytes
from lab.claims.rule import evaluate
from lab.claims.speculation import needed_acceptance
from lab.claims.trial import Trial
from lab.engine.adaptive_window import tokens_per_round
from lab.measure.theory import speedup
from lab.memory.model_memory import known_models

NAMES = {
    "speedup": speedup,
    "needed": needed_acceptance,
    "tokens_per_round": tokens_per_round,
    "weights": lambda key: 2 * known_models()[key].parameters,
    "kv": lambda key: token_bytes(known_models()[key]),
}
"""What formulas may call: theorem 3.8 and the acceptance it takes, equation 1, a published model's bytes in 16 bits."""


def derived(_: Trial, *, values: Mapping[str, float], formulas: Mapping[str, str]) -> Figures:
    """``values`` as claimed, and ``formulas`` over them and the formulas before, as in rules."""
    found = dict(values)
    for key, formula in formulas.items():
        found[key] = evaluate(formula, NAMES | found)
    return Figures(found)
