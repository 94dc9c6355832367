"""Which window is best, depending on how much is accepted."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from functools import partial

from lab.claims.claim import NEWSLETTER, TEXTS, Chart, Claim, Found, Number, Series, Values, Verdict, by_name, plain
from lab.claims.gains import TENTH
from lab.claims.speculation import TOPIC, accepted, key, kinds, tally
from lab.claims.trial import Trial
from lab.config import EngineConfig
from lab.engine.adaptive_window import best_window
from lab.errors import LabError
from lab.measure.interval import median_interval

GAMMAS = (1, 2, 4, 8)
JUDGED_AT = 4
"""The window whose acceptance stands for a kind of text."""


def windows(trial: Trial) -> Found:
    tokens, texts = (24, 2) if trial.small else (32, TEXTS)
    configs = {0: EngineConfig()} | {
        gamma: EngineConfig(speculative="draft", num_speculative_tokens=gamma) for gamma in GAMMAS
    }
    all_kinds = kinds(trial)
    rows = {
        f"γ {gamma}, {name}, text {place}": partial(
            trial.generate, kind.engine, prompt, config, tokens, kind.temperature
        )
        for name, kind in all_kinds.items()
        for place, prompt in enumerate(kind.prompts[:texts], 1)
        for gamma, config in configs.items()
    }
    runs = trial.take_turns(rows, repeats=1)
    numbers, series = [], []
    for name in all_kinds:
        by_gamma = {
            gamma: [run for row, some in runs.items() if row.startswith(f"γ {gamma}, {name}, ") for run in some]
            for gamma in configs
        }
        rates = {gamma: [run.metrics.tokens_per_second for run in some] for gamma, some in by_gamma.items()}
        tallies = [tally(run, JUDGED_AT) for run in by_gamma[JUDGED_AT]]
        if not any(one.rounds for one in tallies):
            raise LabError(f"No whole round of {JUDGED_AT} guesses in {tokens} tokens of {name}.")
        share = accepted(tallies)
        cheap = best_window(share.value, GAMMAS[-1], lambda gamma: 1 + TENTH * gamma)
        numbers += [
            Number.within(key("accepted", name), f"accepted of judged, γ {JUDGED_AT}, {name}", share, "%"),
            fastest(rates)._replace(
                key=key("best", name), label=f"fastest γ of 0, {', '.join(map(str, GAMMAS))}, {name}"
            ),
            Number(key("cheap", name), f"best γ up to {GAMMAS[-1]} by theory at c 0.1, {name}", cheap, "", "formula"),
        ]
        medians = [statistics.median(some) for some in rates.values()]
        series.append(Series(name, tuple(rates), tuple(rate / medians[0] for rate in medians)))
    return Found(tuple(numbers), Chart("lines", "γ", "× as fast as without", tuple(series)))


def fastest(rates: Mapping[int, Sequence[float]]) -> Number:
    """The window with the highest median rate; its interval spans all windows that are not surely slower.

    Args:
        rates: tokens per second by window, for the same texts in the same order.
    """
    best = max(rates, key=lambda gamma: statistics.median(rates[gamma]))
    ratios = {gamma: [a / b for a, b in zip(some, rates[best], strict=True)] for gamma, some in rates.items()}
    sure = {gamma: median_interval(some) for gamma, some in ratios.items()}
    likely = [gamma for gamma, one in sure.items() if one.high is None or one.high >= 1]
    return Number("best", "fastest γ", best, low=min(likely), high=max(likely))


def judge_windows(values: Values) -> Verdict:
    accepted, best = by_name(values, "accepted"), by_name(values, "best")
    order = sorted(accepted, key=accepted.__getitem__)
    windows = [best[kind] for kind in order]
    found = f"The fastest γ is {', '.join(map(plain, windows))}, from the least accepted kind of text to the most"
    if windows[-1] > windows[0] and all(a <= b for a, b in itertools.pairwise(windows)):
        return Verdict("holds", f"{found}.")
    needs = (
        "StepCosts that stay the same: the best window follows from acceptance and from what a guess and a pass cost."
    )
    if windows[-1] > windows[0]:
        return Verdict("conditions", f"{found}: larger at the end, not all the way.", needs)
    return Verdict("fails", f"{found}.", needs)


CLAIMS = (
    Claim(
        id="larger-window",
        topic=TOPIC,
        quote="High acceptance rates increase the window size. Low acceptance rates decrease it.",
        source=NEWSLETTER,
        tested="Tokens a second with windows from 0 to 8 in three kinds of text, and in one of them with the wrong "
        "draft too; the fastest window of each beside what is accepted of it.",
        rule="Holds if the fastest window never falls and is larger in the end, from the least accepted of these four "
        "to the most. Under conditions if it is larger in the end.",
        experiment=windows,
        judge=judge_windows,
    ),
)
