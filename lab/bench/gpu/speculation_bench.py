"""Speculation with a draft that is right with a chosen probability, against what the formula says.

A round of gamma proposals, each right with probability a, gives (1 - a^(gamma + 1)) / (1 - a) tokens on average and
takes the time of 1 + gamma c passes (Leviathan et al., 2211.17192), where c is a proposal's time in decode steps.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace

import torch

from lab.bench.gpu.random_models import draft_script
from lab.bench.gpu.sheet import Sheet, spread
from lab.config import EngineConfig
from lab.engine.adaptive_window import tokens_per_round
from lab.engine.engine import Engine
from lab.measure.measuring import steps
from lab.trace.run import Run

RATES = (0.5, 0.7, 0.9)


class Speculation:
    """Fills ``speculation``: a row for every acceptance and gamma, from all runs so far.

    Args:
        lab: an engine with a draft whose script may be written into.
        script: the target's.
        plain: the setting without speculation.
        gammas: in the order in which they are measured.
        decode: decodes with a setting, all tokens or the given number.
    """

    def __init__(
        self,
        sheet: Sheet,
        lab: Engine,
        script: torch.Tensor,
        plain: EngineConfig,
        gammas: tuple[int, ...],
        decode: Callable[..., Run],
    ) -> None:
        self._sheet = sheet
        self._lab = lab
        self._script = script
        self._plain = plain
        self._configs = {g: replace(plain, speculative="draft", num_speculative_tokens=g) for g in gammas}
        self._decode = decode
        self._runs: dict[tuple[float, int], list[dict[str, float]]] = defaultdict(list)
        self._passes = 0
        sheet.result["speculation"] = []

    def warm_up(self, longest: int) -> None:
        """Capture and compile everything that the measured runs need, for up to ``longest`` tokens.

        First the graphs of every window, because a window that the run's end cuts short is that of a smaller gamma.
        Then a short run of each, with a draft that is often wrong.
        """
        for config in self._configs.values():
            self._lab.warm_up(config, longest=longest)
        self._lab.draft.script.copy_(draft_script(self._script, RATES[0]))
        for gamma, config in self._configs.items():
            self._decode(config, 4 * (gamma + 1))

    def measure(self, reserve: float) -> bool:
        """Another run of every pair while ``reserve`` seconds are left, and a plain run to compare them with.

        The draft is wrong at other positions in each pass.

        Returns:
            Whether there was time for all.
        """
        began = time.perf_counter()
        plain = self._decode(self._plain)
        longest = time.perf_counter() - began
        base = plain.metrics.tokens_per_second
        step_ms = statistics.median(step.total_ms for step in steps(plain, "decode"))
        for gamma, config in self._configs.items():
            what = f"run {self._passes + 1} of speculation from gamma {gamma} on"
            if not self._sheet.has_time(len(RATES) * longest + reserve, what):
                return False
            for rate in RATES:
                self._lab.draft.script.copy_(draft_script(self._script, rate, seed=self._passes))
                began = time.perf_counter()
                run = self._decode(config)
                longest = max(longest, time.perf_counter() - began)
                self._runs[rate, gamma].append(_figures(run, gamma, base, step_ms))
                self._sheet.result["speculation"] = [_row(*key, runs) for key, runs in sorted(self._runs.items())]
                self._sheet.keep()
            self._sheet.say(f"  gamma {gamma} done")
        self._passes += 1
        return True


def _figures(run: Run, gamma: int, base: float, step_ms: float) -> dict[str, float]:
    """The figures of one run. ``base``: tokens/s of a plain one, whose steps take ``step_ms``."""
    rounds = [step for step in steps(run, "verify") if step.target_tokens == gamma + 1]
    proposal_ms = statistics.median(step.draft_ms for step in rounds) / gamma
    c, given, speedup = proposal_ms / step_ms, run.metrics.mean_acceptance_length, run.metrics.tokens_per_second / base
    return {
        "speedup": speedup,
        "c": c,
        "proposal_ms": proposal_ms,
        "verify_ms": statistics.median(step.verify_ms for step in rounds),
        "tokens_per_round": given,
        "formula_as_accepted": given / (1 + gamma * c),
        "measured_over_formula_as_accepted": speedup / (given / (1 + gamma * c)),
    }


def _row(rate: float, gamma: int, runs: list[dict[str, float]]) -> dict:
    """Medians over the runs. ``formula``: with the acceptance asked for; ``formula_as_accepted``: with the tokens per
    round of the same run, which vary because a run has only a few dozen rounds. The engine is judged by the latter: the
    former's difference from it is chance, and the same in every call of the bench, as the seeds are.
    """
    medians = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
    expected = tokens_per_round(rate, gamma)
    formula = expected / (1 + gamma * medians["c"])
    return {
        "acceptance": rate,
        "gamma": gamma,
        **medians,
        "spread": spread([run["speedup"] for run in runs]),
        "expected_tokens_per_round": expected,
        "formula": formula,
        "measured_over_formula": medians["speedup"] / formula,
    }


def format_speculation(result: dict) -> list[str]:
    lines = []
    for rate in RATES:
        rows = [row for row in result.get("speculation", ()) if row["acceptance"] == rate]
        cells = (
            f"{row['gamma']}: {row['speedup']:.2f} ({row['formula']:.2f}, {row['formula_as_accepted']:.2f})"
            for row in rows
        )
        if rows:
            lines.append(f"speed-up at acceptance {rate} by gamma: {'  '.join(cells)}")
    if lines:
        judged, nominal = (
            [row[f"measured_over_{formula}"] for row in result["speculation"]]
            for formula in ("formula_as_accepted", "formula")
        )
        lines.append("  in brackets: the formula's, with that acceptance, and with the tokens a round that came")
        lines.append(
            f"  judged by the second: {min(judged):.2f} to {max(judged):.2f} of it was measured; of the first, whose "
            f"difference from it is chance, {min(nominal):.2f} to {max(nominal):.2f}"
        )
    return lines
