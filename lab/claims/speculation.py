"""What a draft's guesses come to: how many are kept, how many tokens a pass gives, how much faster it gets."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from lab.bench.interval import share_interval
from lab.bench.theory import Speculated, speculated
from lab.bench.window import STORIES, Kind, mix
from lab.claims.claim import (
    GAMMA,
    TUTORIAL,
    Chart,
    Claim,
    Found,
    Number,
    Series,
    Values,
    Verdict,
    of,
    percent,
    plain,
    times,
)
from lab.claims.trial import Trial
from lab.config import EngineConfig, LabError

TOPIC = "What speculation gains"
PROMISED = 0.6, 0.7
"""The acceptance that the article gives for its pair."""


class Guessed(NamedTuple):
    """Of one kind of text: what its rounds did, how many of its greedy runs wrote what plain decoding writes, and how
    many times as fast each of all its runs was."""

    rounds: Speculated
    same: int
    runs: int
    faster: tuple[float, ...]

    @property
    def of_proposed(self) -> float:
        """Accepted of all proposals, those after a refused one included."""
        return (self.rounds.tokens - 1) / self.rounds.gamma


def kinds(trial: Trial) -> dict[str, Kind]:
    """From easy to hard: greedy stories, drawn ones, program code, and stories by the wrong draft."""
    easy, middling, hard = mix(trial.engine("matched"), trial.engine("mismatched")).values()
    return {
        "stories (greedy)": easy,
        "stories (temperature 0.8)": Kind(easy.engine, STORIES, 0.8),
        "code (temperature 1.5)": middling,
        "stories (wrong draft)": hard,
    }


def guesses(trial: Trial) -> dict[str, Guessed]:
    """Every kind of text with and without a draft, in turns. Raises Stopped, LabError."""
    tokens, repeats, prompts = (24, 1, 1) if trial.small else (96, 2, 2)
    configs = {"plain": EngineConfig(), "draft": EngineConfig(speculative="draft", num_speculative_tokens=GAMMA)}
    all_kinds = kinds(trial)
    rows = {
        f"{name}, {way}, prompt {place}": partial(trial.generate, kind.engine, prompt, config, tokens, kind.temperature)
        for name, kind in all_kinds.items()
        for place, prompt in enumerate(kind.prompts[:prompts], 1)
        for way, config in configs.items()
    }
    runs = trial.take_turns(rows, repeats)
    found = {}
    for name in all_kinds:
        plain_runs, drafted = (
            [run for row, some in runs.items() if row.startswith(f"{name}, {way}, ") for run in some] for way in configs
        )
        rounds = speculated(drafted, plain_runs)
        if rounds is None:
            raise LabError(f"No whole round of {GAMMA} guesses in {tokens} tokens of {name}.")
        greedy = [] if all_kinds[name].temperature else list(zip(drafted, plain_runs, strict=True))
        same = sum(a.token_ids == b.token_ids for a, b in greedy)
        both = zip(drafted, plain_runs, strict=True)
        faster = tuple(a.metrics.tokens_per_second / b.metrics.tokens_per_second for a, b in both)
        found[name] = Guessed(rounds, same, len(greedy), faster)
    return found


def key(what: str, kind: str) -> str:
    return f"{what}: {kind}"


# -- acceptance ------------------------------------------------------------------------------


def acceptance(trial: Trial) -> Found:
    found = trial.once(guesses)
    low, high = PROMISED
    engine = trial.engine("matched")
    sizes = [model.layer_weights + model.head_weights for model in (engine.target, engine.draft)]
    numbers = [
        Number("claimed_low", "as claimed, from", low, "%", "claimed"),
        Number("claimed_high", "to", high, "%", "claimed"),
        Number("sizes", "the target's weights over the draft's", sizes[0] / sizes[1], "×", "formula"),
    ]
    for kind, one in found.items():
        sure = share_interval(sum(one.rounds.accepted), sum(one.rounds.judged))
        numbers += [
            Number(key("accepted", kind), f"accepted of judged, {kind}", sure.value, "%"),
            Number(key("low", kind), f"from (95% interval), {kind}", sure.low, "%"),
            Number(key("high", kind), f"to, {kind}", sure.high, "%"),
        ]
    names = tuple(found)
    series = (
        Series("accepted", names, tuple(100 * one.rounds.acceptance for one in found.values())),
        *(
            Series(f"claimed, {way}", names, (100 * share,) * len(names), "claimed")
            for way, share in (("from", low), ("to", high))
        ),
    )
    return Found(tuple(numbers), Chart("bars", f"% accepted, γ {GAMMA}", "", series))


def judge_acceptance(values: Values) -> Verdict:
    accepted, lows, highs = of(values, "accepted"), of(values, "low"), of(values, "high")
    low, high = values["claimed_low"], values["claimed_high"]
    inside = [kind for kind in accepted if lows[kind] <= high and highs[kind] >= low]
    spread = f"{percent(min(accepted.values()))} to {percent(max(accepted.values()))}, by text, temperature and draft"
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
    numbers, tokens, theory, article, kinds_seen = [], [], [], [], []
    for kind, one in trial.once(guesses).items():
        rounds = one.rounds
        said = 1 + GAMMA * rounds.acceptance
        numbers += [
            Number(key("said", kind), f"1 + γ × acceptance, {kind}", said, "", "claimed"),
            Number(key("tokens", kind), f"tokens a pass gave, {kind}", rounds.tokens),
            Number(key("theory", kind), f"(1 − aᵞ⁺¹) / (1 − a), {kind}", rounds.expected_tokens, "", "formula"),
            Number(
                key("all", kind),
                f"1 + γ × accepted of all proposed, {kind}",
                1 + GAMMA * one.of_proposed,
                "",
                "formula",
            ),
            Number.median(key("faster", kind), f"speed-up, median, {kind}", one.faster, "×"),
        ]
        kinds_seen.append(kind)
        article.append(said)
        theory.append(rounds.expected_tokens)
        tokens.append(rounds.tokens)
    names = tuple(kinds_seen)
    series = (
        Series("1 + γa", names, tuple(article), "claimed"),
        Series("(1 − aᵞ⁺¹) / (1 − a)", names, tuple(theory), "formula"),
        Series("tokens a pass", names, tuple(tokens)),
    )
    return Found(tuple(numbers), Chart("bars", f"tokens a pass, γ {GAMMA}", "", series))


def judge_formula(values: Values) -> Verdict:
    said, tokens, counted, faster = (of(values, what) for what in ("said", "tokens", "all", "faster"))
    over = {kind: said[kind] / tokens[kind] for kind in said}
    passes = all(close(ratio) for ratio in over.values())
    if passes and all(close(said[kind] / faster[kind]) for kind in said):
        return Verdict("holds", "It is the number of tokens a pass gives, and the speed-up.")
    best = max(faster, key=faster.__getitem__)
    speed = (
        f"As a speed-up it leaves out the drafting and the wider pass: at most {times(faster[best])} ({best}), where "
        f"it says {times(said[best])}."
    )
    needs = "(1 − aᵞ⁺¹) / (1 − a) for the tokens, divided by 1 + γc for the time; or an acceptance of 0 or 1."
    if passes or all(close(counted[kind] / tokens[kind]) for kind in said):
        worst = max(over, key=over.__getitem__)
        why = (
            "As tokens a pass, if guesses thrown away unjudged count as refused: then it is true by definition. With "
            f"the acceptance of judged ones it says {plain(said[worst])} where a pass gave {plain(tokens[worst])} "
            f"({worst})."
        )
        return Verdict("conditions", f"{why} {speed}", needs)
    return Verdict("fails", speed, needs)


def close(ratio: float) -> bool:
    return 0.9 <= ratio <= 1.1


CLAIMS = (
    Claim(
        id="acceptance-rate",
        topic=TOPIC,
        quote="70B → 7B pairing: ~60-70% acceptance rate at gamma=5",
        source=TUTORIAL,
        tested="The embedded pair with γ 5: accepted of judged guesses in four kinds of text. Their pair itself is "
        "too large for this.",
        rule="Holds if the 95% interval of every kind of text meets 60-70%. Under conditions if that of some does, or "
        "if they lie on both sides.",
        experiment=acceptance,
        judge=judge_acceptance,
    ),
    Claim(
        id="speedup-formula",
        topic=TOPIC,
        quote="Effective speedup: 1 + gamma * acceptance_rate forward passes saved",
        source=TUTORIAL,
        tested="That formula beside Leviathan's (2211.17192, equation 1), the tokens that a pass of the target really "
        "gave, and the speed-up.",
        rule="Holds if it is within 10% of the tokens a pass and of the speed-up, in every kind of text. Under "
        "conditions if it is of the tokens a pass, with acceptance counted over all proposed guesses.",
        experiment=formula,
        judge=judge_formula,
    ),
)
