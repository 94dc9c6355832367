"""What a draft's guesses are worth: how many are accepted, how many tokens a pass gives, how much faster it gets."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from lab.bench.window_sweep import RequestKind, mix
from lab.claims.claim import (
    GAMMA,
    TEXTS,
    TUTORIAL,
    Chart,
    Claim,
    Found,
    Number,
    Series,
    Values,
    Verdict,
    by_name,
    percent,
    plain,
    times,
)
from lab.claims.trial import Trial
from lab.config import EngineConfig
from lab.errors import LabError
from lab.measure.interval import Interval, ratio_interval
from lab.measure.prompts import CODE, held_out_prompts
from lab.measure.theory import Speculated, speculated, whole_rounds
from lab.trace.events import Judged
from lab.trace.run import Run
from lab.util.messages import listed

TOPIC = "What speculation gains"
PROMISED = 0.6, 0.7
"""The acceptance that the article gives for its pair."""
WRONG_DRAFT = "stories (wrong draft)"
"""The kind of text whose draft does not match: no rule about well-matched ones looks at it."""


class Tally(NamedTuple):
    """Rounds of a full window in one text, and their guesses."""

    rounds: int
    judged: int
    accepted: int


class Guessed(NamedTuple):
    """For one kind of text: what its rounds did, together and text by text, how many of its greedy texts are what plain
    decoding writes, and the speed-up of each of its texts."""

    rounds: Speculated
    tallies: tuple[Tally, ...]
    same: int
    texts: int
    faster: tuple[float, ...]

    @property
    def tokens(self) -> Interval:
        """Tokens per round, over texts."""
        return ratio_interval([one.rounds + one.accepted for one in self.tallies], [one.rounds for one in self.tallies])


def kinds(trial: Trial) -> dict[str, RequestKind]:
    """From easy to hard: greedy stories, sampled ones, program code, and stories with the wrong draft; ``TEXTS`` of
    each. The pair was not trained on these stories."""
    easy, middling, hard = mix(trial.engine("matched"), trial.engine("mismatched")).values()
    stories, code = tuple(held_out_prompts()[:TEXTS]), CODE
    return {
        "stories (greedy)": easy._replace(prompts=stories),
        "stories (temperature 0.8)": easy._replace(prompts=stories, temperature=0.8),
        "code (temperature 1.5)": middling._replace(prompts=code),
        WRONG_DRAFT: hard._replace(prompts=stories),
    }


def guesses(trial: Trial) -> dict[str, Guessed]:
    """Every text of every kind with and without a draft, in turns. Raises Stopped, LabError."""
    tokens, texts = (24, 2) if trial.small else (48, TEXTS)
    configs = {"plain": EngineConfig(), "draft": EngineConfig(speculative="draft", num_speculative_tokens=GAMMA)}
    all_kinds = kinds(trial)
    rows = {
        f"{name}, {way}, text {place}": partial(trial.generate, kind.engine, prompt, config, tokens, kind.temperature)
        for name, kind in all_kinds.items()
        for place, prompt in enumerate(kind.prompts[:texts], 1)
        for way, config in configs.items()
    }
    runs = trial.take_turns(rows, repeats=1)
    found = {}
    for name in all_kinds:
        plain_runs, drafted = (
            [run for row, some in runs.items() if row.startswith(f"{name}, {way}, ") for run in some] for way in configs
        )
        rounds = speculated(drafted, plain_runs)
        if rounds is None:
            raise LabError(f"No whole round of {GAMMA} guesses in {tokens} tokens of {name}.")
        both = list(zip(drafted, plain_runs, strict=True))
        alike = [a.token_ids == b.token_ids for a, b in both if not all_kinds[name].temperature]
        faster = tuple(a.metrics.tokens_per_second / b.metrics.tokens_per_second for a, b in both)
        tallies = tuple(tally(run, GAMMA) for run in drafted)
        found[name] = Guessed(rounds, tallies, sum(alike), len(alike), faster)
    return found


def tally(run: Run, gamma: int) -> Tally:
    whole = whole_rounds(run, gamma)
    verdicts = [event.accepted for event in run.events if isinstance(event, Judged) and event.step in whole]
    return Tally(len(whole), len(verdicts), sum(verdicts))


def accepted(tallies: Sequence[Tally]) -> Interval:
    """Accepted of judged guesses, over texts."""
    return ratio_interval([one.accepted for one in tallies], [one.judged for one in tallies])


def key(what: str, kind: str) -> str:
    return f"{what}: {kind}"


def well_matched(values: Values, what: str) -> dict[str, float]:
    """See ``of``."""
    return {kind: value for kind, value in by_name(values, what).items() if kind != WRONG_DRAFT}


# -- acceptance ------------------------------------------------------------------------------


def acceptance(trial: Trial) -> Found:
    guessed = trial.once(guesses)
    found = {kind: accepted_of(kind, one) for kind, one in guessed.items()}
    low, high = PROMISED
    engine = trial.engine("matched")
    sizes = [model.layer_weights + model.head_weights for model in (engine.target, engine.draft)]
    names = tuple(found)
    series = (
        Series("accepted", names, tuple(100 * number.value for number in found.values())),
        *(
            Series(f"claimed, {way}", names, (100 * share,) * len(names), "claimed")
            for way, share in (("from", low), ("to", high))
        ),
    )
    return Found(
        (
            Number("claimed_low", "as claimed, from", low, "%", "claimed"),
            Number("claimed_high", "to", high, "%", "claimed"),
            Number("sizes", "the target's weights over the draft's", sizes[0] / sizes[1], "×", "formula"),
            *found.values(),
            *(
                Number.within(key("of_all", kind), f"accepted of all, {kind}", one.tokens.map(share_of_all), "%")
                for kind, one in guessed.items()
            ),
        ),
        Chart("bars", f"% accepted, γ {GAMMA}", "", series),
    )


def accepted_of(kind: str, one: Guessed) -> Number:
    return Number.within(key("accepted", kind), f"accepted of judged, {kind}", accepted(one.tallies), "%")


def share_of_all(tokens: float) -> float:
    """Accepted of all guesses, from the tokens that a round gives."""
    return (tokens - 1) / GAMMA


def judge_acceptance(values: Values) -> Verdict:
    accepted = well_matched(values, "accepted")
    low, high = values["claimed_low"], values["claimed_high"]
    inside = [kind for kind, share in accepted.items() if low <= share <= high]
    spread = f"{percent(min(accepted.values()))} to {percent(max(accepted.values()))}, by text and temperature"
    if len(inside) == len(accepted):
        return Verdict("holds", f"{spread}.")
    needs = (
        "A pair and a text of that acceptance: it belongs to both, and to the temperature, not to the ratio of sizes."
    )
    if inside:
        return Verdict("conditions", f"For {', '.join(inside)}. In all: {spread}.", needs)
    if min(accepted.values()) < low and max(accepted.values()) > high:
        return Verdict("conditions", f"For texts between these: {spread}.", needs)
    return Verdict("fails", f"{spread}.", needs)


# -- 1 + gamma x acceptance ------------------------------------------------------------------


def formula(trial: Trial) -> Found:
    found = trial.once(guesses)
    numbers, tokens, theory, faster = [], [], [], []
    for kind, one in found.items():
        rounds = one.rounds
        said = 1 + GAMMA * rounds.acceptance
        numbers += [
            Number(key("tokens", kind), f"tokens a pass gave = 1 + γ × accepted of all, {kind}", rounds.tokens),
            Number(key("said", kind), f"1 + γ × accepted of judged, {kind}", said, "", "claimed"),
            Number(key("theory", kind), f"(1 − aᵞ⁺¹) / (1 − a), {kind}", rounds.expected_tokens, "", "formula"),
            Number.median(key("faster", kind), f"speed-up, median, {kind}", one.faster, "×"),
        ]
        tokens.append(rounds.tokens)
        theory.append(rounds.expected_tokens)
        faster.append(numbers[-1].value)
    names = tuple(found)
    series = (
        Series("1 + γ × accepted of all", names, tuple(tokens), "claimed"),
        Series("(1 − aᵞ⁺¹) / (1 − a)", names, tuple(theory), "formula"),
        Series("speed-up", names, tuple(faster)),
    )
    return Found(tuple(numbers), Chart("bars", f"tokens a pass, and × as fast, γ {GAMMA}", "", series))


def judge_formula(values: Values) -> Verdict:
    said, tokens, faster = (well_matched(values, what) for what in ("said", "tokens", "faster"))
    off = {kind: tokens[kind] / faster[kind] for kind in tokens}
    met = [kind for kind, ratio in off.items() if close(ratio)]
    far = max(off, key=off.__getitem__)
    worst = max(said, key=lambda kind: said[kind] / tokens[kind])
    tally = "With the share accepted of all guesses it is the number of tokens that a pass gives, by definition."
    if not close(said[worst] / tokens[worst]):
        tally += (
            " With the share accepted of those that were judged (none after a rejected one is) it is not even that: it "
            f"says {plain(said[worst])} where a pass gave {plain(tokens[worst])} ({worst})."
        )
    if len(met) == len(tokens):
        return Verdict("holds", f"It is the speed-up: drafting and the wider pass take almost no time. {tally}")
    why = (
        "As a speed-up it ignores the time of drafting and of the wider pass: decoding is "
        f"{times(faster[far])} as fast where it says {times(tokens[far])} ({far}). {tally}"
    )
    needs = (
        "A draft that takes almost no time, and a pass over γ + 1 tokens that takes no longer than one over a single "
        "token. Else divide by what a round takes, in passes over a single token."
    )
    if met:
        return Verdict("conditions", f"For {listed(met)}. {why}", needs)
    return Verdict("fails", why, needs)


def close(ratio: float) -> bool:
    return 0.9 <= ratio <= 1.1


CLAIMS = (
    Claim(
        id="acceptance-rate",
        topic=TOPIC,
        quote="With a well-matched draft model: 70B → 7B pairing: ~60-70% acceptance rate at gamma=5",
        source=TUTORIAL,
        tested=f"The embedded pair with γ 5: accepted of judged guesses in three kinds of text, of each {TEXTS} texts; "
        "beside them the share of all guesses, where those after a rejected one count as rejected, and stories with a "
        "draft that does not match. Their pair itself is too large for this.",
        rule="Holds if 60-70% of the judged guesses are accepted in every kind of text with the matching draft. Under "
        "conditions if so many are in some, or if these kinds lie on both sides.",
        experiment=acceptance,
        judge=judge_acceptance,
    ),
    Claim(
        id="speedup-formula",
        topic=TOPIC,
        quote="Effective speedup: 1 + gamma * acceptance_rate forward passes saved",
        source=TUTORIAL,
        tested="That formula beside the speed-up, the tokens that a pass of the target really gave, and Leviathan's "
        "formula for them (2211.17192, equation 1). The article's program stops at the first rejected guess: here, "
        "of all γ guesses, those after it count as rejected, too.",
        rule="Holds if 1 + γ × accepted of all guesses is within 10% of the speed-up in every kind of text with the "
        "matching draft: the article speaks of well-matched ones. Under conditions if it is in some. (That it is the "
        "tokens a pass gives is an identity and decides nothing.)",
        experiment=formula,
        judge=judge_formula,
    ),
)
