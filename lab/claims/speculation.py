"""Speculation in several kinds of text: acceptance, tokens per pass, speed-up, and what promises take."""

import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

from lab.claims.claim import ClaimChart, Figures, Series
from lab.claims.comparisons import GREEDY, PLAIN, PROGRAMS, WRONG_DRAFT, Configs, decode_rate, kinds, text_sweep
from lab.claims.counting import recorded_part
from lab.claims.trial import Trial
from lab.engine.adaptive_window import best_window
from lab.errors import LabError
from lab.measure.interval import Interval, median_interval, ratio_interval, ratios
from lab.measure.theory import GAMMAS, Speculated, best_speedup, needed_acceptance, speculated, whole_rounds
from lab.trace.events import Verified
from lab.trace.run import Run

GAMMA = 5
"""Draft tokens per round, the number that the articles use where they name one."""
TENTH = 0.1
"""c of a draft a tenth of the target's size, if the time goes into reading weights."""
TOKENS = 48
CONFIGS = {"plain": {}, "draft": {"speculative": "draft", "num_speculative_tokens": GAMMA}}


class DraftTally(NamedTuple):
    """Rounds of a full window in one text, and their draft tokens. ``whole``: rounds that accepted all of them."""

    rounds: int
    verified: int
    accepted: int
    whole: int = 0


class TextSpeculation(NamedTuple):
    """Speculation in one kind of text.

    ``rounds``: all its rounds together; ``tallies``: text by text; ``same`` of ``texts`` greedy texts are what plain
    decoding writes; ``faster``: the speed-up of each text.
    """

    rounds: Speculated
    tallies: tuple[DraftTally, ...]
    same: int
    texts: int
    faster: tuple[float, ...]

    @property
    def tokens(self) -> Interval:
        """Tokens per round, over texts."""
        return ratio_interval([one.rounds + one.accepted for one in self.tallies], [one.rounds for one in self.tallies])


def speculation(trial: Trial) -> dict[str, TextSpeculation]:
    """Every text of every kind with and without a draft. Raises Stopped, LabError."""
    all_kinds, found = kinds(), {}
    for kind, runs in trial.once(text_sweep, configs=CONFIGS, tokens=TOKENS, kinds=all_kinds).items():
        drafted, plain = runs["draft"], runs["plain"]
        rounds = speculated(drafted, plain)
        if rounds is None:
            raise LabError(f"No whole round of {GAMMA} draft tokens in {len(drafted[0].token_ids)} tokens of {kind}.")
        both = list(zip(drafted, plain, strict=True))
        alike = [a.token_ids == b.token_ids for a, b in both if not all_kinds[kind].temperature]
        faster = tuple(ratios(map(decode_rate, drafted), map(decode_rate, plain)))
        tallies = tuple(tally(run, GAMMA) for run in drafted)
        found[kind] = TextSpeculation(rounds, tallies, sum(alike), len(alike), faster)
    return found


def tally(run: Run, gamma: int) -> DraftTally:
    whole = whole_rounds(run, gamma)
    verdicts = [event for event in run.events if isinstance(event, Verified) and event.step in whole]
    accepted = [event.position for event in verdicts if event.accepted]
    return DraftTally(len(whole), len(verdicts), len(accepted), accepted.count(gamma - 1))


def accepted(tallies: Sequence[DraftTally]) -> Interval:
    """Accepted of verified draft tokens, over texts."""
    return ratio_interval([one.accepted for one in tallies], [one.verified for one in tallies])


def by_kind(found: Mapping[str, TextSpeculation]) -> dict[str, Interval]:
    """The acceptance rate of every kind of text, and the median of its texts' speed-ups."""
    rates = {f"accepted: {kind}": accepted(one.tallies) for kind, one in found.items()}
    return rates | {f"faster: {kind}": median_interval(one.faster) for kind, one in found.items()}


def whole_share(trial: Trial) -> Figures:
    """The share of rounds that accepted all draft tokens, by kind of text."""
    found = trial.once(speculation)
    counts = {kind: [(one.whole, one.rounds) for one in found[kind].tallies] for kind in found}
    return Figures({f"whole: {kind}": ratio_interval(*zip(*some, strict=True)) for kind, some in counts.items()})


def drafts(trial: Trial) -> Figures:
    """Greedy stories with the draft that was distilled for this target, and with the other."""
    found = trial.once(speculation)
    return Figures({f"accepted: {kind}": accepted(found[kind].tallies) for kind in (GREEDY, WRONG_DRAFT)})


def costs(trial: Trial, *, machine: str) -> Figures:
    """The time of a draft token and of a pass over a round, beside a pass over one token, text by text: they do not
    depend on the kind of text. Beside them what the record of a GPU has, for a larger target and draft."""
    sweep = trial.once(text_sweep, configs=CONFIGS, tokens=TOKENS, kinds=kinds())
    pairs = [pair for kind in (GREEDY, PLAIN, PROGRAMS) for pair in zip(*sweep[kind].values(), strict=True)]
    each = [speculated([drafted], [plain]) for plain, drafted in pairs]
    times = [(1 / one.cost, one.pass_ratio) for one in each if one]
    if not times:
        raise LabError(f"No whole round of {GAMMA} draft tokens in {TOKENS} tokens.")
    cheaper, wide = map(median_interval, zip(*times, strict=True))
    found = recorded_part(machine, "2")
    [first, *_] = (row for row in found["speculation"] if row["gamma"] == GAMMA)
    gpu = {"gpu_cheaper": 1 / first["c"], "gpu_wide": first["verify_ms"] / found["decode"]["decode"]["pass_ms"]}
    return Figures({"sizes": size_ratio(trial), "cheaper": cheaper, "wide": wide, **gpu})


def size_ratio(trial: Trial) -> float:
    """Weights of the target over the draft's, without tables of tokens."""
    engine = trial.engine("matched")
    target, draft = (model.layer_weights + model.head_weights for model in (engine.target, engine.draft))
    return target / draft


def acceptance(trial: Trial, *, low: float, high: float) -> Figures:
    """The acceptance rate of every kind of text, beside a promised range."""
    found = trial.once(speculation)
    names, rates = tuple(found), {f"accepted: {kind}": accepted(one.tallies) for kind, one in found.items()}
    promised = (("claimed, from", low), ("claimed, to", high))
    series = (
        Series("accepted", names, tuple(100 * rate.value for rate in rates.values())),
        *(Series(name, names, (100 * share,) * len(names), "claimed") for name, share in promised),
    )
    of_all = {f"of_all: {kind}": one.tokens.map(lambda tokens: (tokens - 1) / GAMMA) for kind, one in found.items()}
    return Figures(
        {"claimed_low": low, "claimed_high": high, "sizes": size_ratio(trial), **rates, **of_all},
        ClaimChart("bars", f"% accepted, γ {GAMMA}", "", series),
    )


def formula(trial: Trial) -> Figures:
    """1 + γ × acceptance, beside the tokens per pass and the speed-up."""
    found = trial.once(speculation)
    values: dict[str, float | Interval] = {}
    for kind, one in found.items():
        values |= {
            f"tokens: {kind}": one.rounds.tokens,
            f"said: {kind}": 1 + GAMMA * one.rounds.acceptance,
            f"theory: {kind}": one.rounds.expected_tokens,
            f"faster: {kind}": median_interval(one.faster),
        }
    series = (
        Series("1 + γ × accepted of all", tuple(found), tuple(values[f"tokens: {kind}"] for kind in found), "claimed"),
        Series("(1 − aᵞ⁺¹) / (1 − a)", tuple(found), tuple(values[f"theory: {kind}"] for kind in found), "formula"),
        Series("speed-up", tuple(found), tuple(values[f"faster: {kind}"].value for kind in found)),
    )
    return Figures(values, ClaimChart("bars", f"tokens per pass, and × as fast, γ {GAMMA}", "", series))


def gains(trial: Trial, *, fixed: Mapping[str, float]) -> Figures:
    """Acceptance and speed-up, what the rounds would give a large target, and whether greedy texts stay the same.
    ``fixed``: further values."""
    found = trial.once(speculation)
    large = {
        f"large: {kind}": one.tokens.map(lambda tokens: tokens / (GAMMA * TENTH + 1)) for kind, one in found.items()
    }
    return Figures(
        {
            **by_kind(found),
            **fixed,
            **large,
            "tokens": found[PLAIN].tokens,
            "cost": found[PLAIN].rounds.cost,
            "wide": found[PLAIN].rounds.pass_ratio,
            "texts": sum(one.texts for one in found.values()),
            "same": sum(one.same for one in found.values()),
            "exact": trial.engine("matched").target.dtype == torch.float32,
        }
    )


def promised(
    trial: Trial,
    *,
    needs: Mapping[str, Sequence[float]],
    costs: Mapping[str, float],
    claimed: Sequence[float],
    fixed: Mapping[str, float] | None = None,
    limit: float | None = None,
) -> Figures:
    """Speed-ups promised of speculation: the acceptance that each would take, beside what is accepted here.

    By theorem 3.8 of Leviathan et al. (2211.17192), which counts the time of the draft's and the target's passes only,
    with a wide pass as fast as a narrow one: a large target on an idle device comes close to that.

    Args:
        needs: by key, a speed-up, a cost c, and windows (none: the best of ``GAMMAS``).
        costs: curves, by name. claimed: speed-ups, drawn as lines. fixed: further values.
        limit: a c at which the most that any acceptance gives is added.
    """
    found = trial.once(speculation)
    needed = {key: needed_acceptance(faster, cost, some or GAMMAS) for key, (faster, cost, *some) in needs.items()}
    if limit is not None:
        needed["limit"] = best_speedup(1.0, limit)
    xs = tuple(i / 48 for i in range(49))
    series = (
        *(Series(name, xs, tuple(best_speedup(x, cost) for x in xs), "formula") for name, cost in costs.items()),
        *(Series(f"claimed, {ratio:g}×", (0.0, 1.0), (ratio, ratio), "claimed") for ratio in claimed),
    )
    return Figures(
        {**by_kind(found), **(fixed or {}), **needed},
        ClaimChart("lines", "acceptance", "× as fast at the best γ", series),
    )


def windows(trial: Trial, *, gammas: Sequence[int], verified_at: int, tokens: int) -> Figures:
    """The fastest window of each kind of text. ``verified_at``: the window whose acceptance stands for the kind."""
    configs: Configs = {
        f"γ {gamma}": {"speculative": "draft", "num_speculative_tokens": gamma} if gamma else {} for gamma in gammas
    }
    values: dict[str, float | Interval] = {}
    series = []
    for kind, runs in trial.once(text_sweep, configs=configs, tokens=tokens, kinds=kinds()).items():
        rates = {gamma: list(map(decode_rate, some)) for gamma, some in zip(gammas, runs.values(), strict=True)}
        tallies = [tally(run, verified_at) for run in runs[f"γ {verified_at}"]]
        if not any(one.rounds for one in tallies):
            raise LabError(f"No whole round of {verified_at} draft tokens in the texts of {kind}.")
        share = accepted(tallies)
        values |= {
            f"accepted: {kind}": share,
            f"best: {kind}": fastest(rates),
            f"cheap: {kind}": best_window(share.value, gammas[-1], lambda gamma: 1 + TENTH * gamma),
        }
        medians = [statistics.median(some) for some in rates.values()]
        series.append(Series(kind, tuple(rates), tuple(rate / medians[0] for rate in medians)))
    return Figures(values, ClaimChart("lines", "γ", "× as fast as without", tuple(series)))


def fastest(rates: Mapping[int, Sequence[float]]) -> Interval:
    """The window with the highest median rate; its interval spans all windows that are not surely slower.

    Args:
        rates: tokens per second by window, for the same texts in the same order.
    """
    best = max(rates, key=lambda gamma: statistics.median(rates[gamma]))
    sure = {gamma: median_interval(ratios(some, rates[best])) for gamma, some in rates.items()}
    likely = [gamma for gamma, one in sure.items() if one.high is None or one.high >= 1]
    return Interval(best, min(likely), max(likely))
