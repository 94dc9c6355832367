"""Speed-ups promised of speculation: what is measured, and the acceptance that each would take.

By theorem 3.8 of Leviathan et al. (2211.17192), which counts the time of the draft's and the target's passes only, with
a wide pass as fast as a narrow one: a large target on an idle device comes close to that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from lab.claims.claim import (
    COURSE,
    GAMMA,
    NEWSLETTER,
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
from lab.claims.speculation import TOPIC, accepted_of, guesses, key
from lab.claims.trial import Trial
from lab.measure.theory import speedup

GAMMAS = range(1, 33)
"""Windows to choose from; 32 is the widest that the engine takes."""
TENTH = 0.1
"""c of a draft a tenth of the target's size, if the time goes into reading weights."""
SEVEN_TWO = 7.2
CHATBOT_COST = 1.5 / 175
PLAIN = "stories (temperature 0.8)"
"""The kind of text that is no special case."""
POINTS = 48


def best_speedup(acceptance: float, cost: float, gammas: Sequence[int] = GAMMAS) -> float:
    """The speed-up at the best of some windows."""
    return max(speedup(acceptance, gamma, cost) for gamma in gammas)


def needed_acceptance(faster: float, cost: float, gammas: Sequence[int] = GAMMAS) -> float:
    """The least acceptance at which the best of some windows gives that speed-up. Infinite: not even 1 does."""
    if best_speedup(1.0, cost, gammas) < faster:
        return math.inf
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        enough = best_speedup(middle, cost, gammas) >= faster
        low, high = (low, middle) if enough else (middle, high)
    return high


def curves(costs: dict[str, float], claimed: Sequence[float]) -> Chart:
    xs = tuple(i / POINTS for i in range(POINTS + 1))
    series = tuple(
        Series(name, xs, tuple(best_speedup(x, cost) for x in xs), "formula") for name, cost in costs.items()
    )
    lines = tuple(Series(f"claimed, {times(ratio)}", (0.0, 1.0), (ratio, ratio), "claimed") for ratio in claimed)
    return Chart("lines", "acceptance", "× as fast at the best γ", (*series, *lines))


def measured(trial: Trial) -> list[Number]:
    """Acceptance and speed-up of every kind of text."""
    numbers = []
    for kind, one in trial.once(guesses).items():
        numbers += [
            accepted_of(kind, one),
            Number.median(key("faster", kind), f"speed-up, median, {kind}", one.faster, "×"),
        ]
    return numbers


# -- 2 to 3 ----------------------------------------------------------------------------------


def two_to_three(trial: Trial) -> Found:
    found = trial.once(guesses)
    numbers = measured(trial)
    for kind, one in found.items():
        large = one.tokens.map(lambda tokens: tokens / (GAMMA * TENTH + 1))
        label = f"theorem 3.8 at c 0.1, with the tokens per round of this machine, {kind}"
        numbers.append(Number.within(key("large", kind), label, large, "×")._replace(kind="formula"))
    one = found[PLAIN].rounds
    return Found(
        (
            *numbers,
            Number("cost", "c here: a guess over a pass", one.cost),
            Number("wide", f"here a pass over {GAMMA + 1} tokens takes", one.pass_ratio, "×"),
            Number("texts", "greedy texts with a draft", sum(one.texts for one in found.values())),
            Number("same", "of which are what plain decoding writes", sum(one.same for one in found.values())),
            Number("exact", "computed in float32", trial.engine("matched").target.dtype == torch.float32),
        )
    )


def judge_two_to_three(values: Values) -> Verdict:
    faster, large = by_name(values, "faster"), by_name(values, "large")
    best, could = max(faster, key=faster.__getitem__), max(large, key=large.__getitem__)
    here = f"{_alike(values)} Here {times(min(faster.values()))} to {times(faster[best])} ({best})."
    if values["same"] < values["texts"] and values["exact"]:
        return Verdict(
            "fails", here, "A verify that computes what a decode does: in float32 greedy texts are the same."
        )
    if faster[PLAIN] >= 2:
        return Verdict("holds", here)
    needs = (
        "A target so large that its passes are bound by reading weights (the wide pass is then as fast as the narrow "
        "one), a draft that costs a tenth of it, and a text like the easiest here."
    )
    if large[could] >= 2:
        return Verdict(
            "conditions",
            f"{here} With as many tokens per round, a draft of a tenth of the cost, a wide pass as fast as a narrow "
            f"one and no other work, it would be {times(large[could])} for {could}, and {times(large[PLAIN])} for "
            f"{PLAIN}.",
            needs,
        )
    return Verdict("fails", here, needs)


def _alike(values: Values) -> str:
    """How many greedy texts are the same with a draft as without."""
    texts, parted = plain(values["texts"]), values["texts"] - values["same"]
    if not parted:
        return f"All {texts} greedy texts stay the same."
    part = f"{plain(parted)} of {texts} greedy texts {'parts' if parted == 1 else 'part'} from plain decoding's"
    if values["exact"]:
        return f"{part}."
    return (
        f"{part}. This engine computes in 16 bits, and there rounding does that where two tokens are nearly equally "
        "likely. That the distribution stays the same is tested under “Accepting and redrawing”."
    )


# -- 3 to 10, and 7.2 ------------------------------------------------------------------------


def three_to_ten(trial: Trial) -> Found:
    numbers = measured(trial)
    for faster in (3, 10):
        for cost in (TENTH, TENTH / 10):
            label = f"acceptance needed for ×{faster} at c {cost:g}"
            numbers.append(Number(f"need_{faster}_{cost:g}", label, needed_acceptance(faster, cost), "%", "formula"))
    limit = best_speedup(1.0, TENTH)
    numbers.append(Number("limit", f"at c 0.1 with all accepted, γ up to {GAMMAS[-1]}", limit, "×", "formula"))
    return Found(tuple(numbers), curves({"c 0.1": TENTH, "c 0.01": TENTH / 10}, (3, 10)))


def judge_three_to_ten(values: Values) -> Verdict:
    accepted, faster = by_name(values, "accepted"), by_name(values, "faster")
    best = max(accepted, key=accepted.__getitem__)
    three, ten = values["need_3_0.1"], values["need_10_0.01"]
    here = f"Here at most {times(max(faster.values()))}."
    price = (
        f"Three times takes an acceptance of {percent(three)} with a draft that costs a tenth, ten times "
        f"{percent(ten)} with one that costs a hundredth; the most accepted here is {percent(accepted[best])} ({best})."
    )
    if max(faster.values()) >= 3:
        return Verdict("holds", f"{here} {price}")
    needs = f"A draft that costs a tenth of its target and is right {percent(three)} of the time or more."
    if accepted[best] >= three:
        return Verdict("conditions", f"{here} {price}", needs)
    return Verdict("fails", f"{here} {price}", needs)


def seven_two(trial: Trial) -> Found:
    need = needed_acceptance(SEVEN_TWO, CHATBOT_COST)
    numbers = [
        Number("claimed", "as claimed", SEVEN_TWO, "×", "claimed"),
        Number("cost", "c, the ratio of sizes: 1.5 / 175", CHATBOT_COST, "", "formula"),
        Number("need", f"acceptance needed, best γ up to {GAMMAS[-1]}", need, "%", "formula"),
        *(
            Number(
                f"need_{gamma}", f"at γ {gamma}", needed_acceptance(SEVEN_TWO, CHATBOT_COST, [gamma]), "%", "formula"
            )
            for gamma in (4, 8, 16)
        ),
        *measured(trial),
    ]
    return Found(tuple(numbers), curves({"c 1.5/175": CHATBOT_COST}, (SEVEN_TWO,)))


def judge_seven_two(values: Values) -> Verdict:
    accepted, need = by_name(values, "accepted"), values["need"]
    best = max(accepted, key=accepted.__getitem__)
    here = f"It takes an acceptance of {percent(need)} or more; here it is {percent(accepted[PLAIN])} in {PLAIN}"
    if accepted[PLAIN] >= need:
        return Verdict("holds", f"{here}.")
    needs = (
        f"A chatbot for which a model 117 times smaller predicts {percent(need)} of the tokens, on average over all "
        "its traffic, and an idle device."
    )
    if accepted[best] >= need:
        return Verdict("conditions", f"{here}, {percent(accepted[best])} in {best}.", needs)
    return Verdict("fails", f"{here}, and at most {percent(accepted[best])} ({best}).", needs)


CLAIMS = (
    Claim(
        id="two-to-three",
        topic=TOPIC,
        quote="Typical speedup: 2-3x with no quality loss.",
        source=COURSE,
        tested="Tokens a second with a draft (γ 5) over those without, prompt by prompt, in three kinds of text, and "
        "in one of them with the wrong draft too; and whether greedy texts stay the same.",
        rule=f"Holds if {PLAIN} gets at least ×2. Under conditions if the tokens that a round gave here would make it "
        "×2 for some kind of text with a draft of a tenth of the cost, a wide pass as fast as a narrow one and no "
        "other work. In float32 all greedy texts have to stay the same. In 16 bits rounding parts some, and they do "
        "not decide.",
        experiment=two_to_three,
        judge=judge_two_to_three,
    ),
    Claim(
        id="three-to-ten",
        topic=TOPIC,
        quote="Speculative Decoding: 3-10x potential gains",
        source=NEWSLETTER,
        tested="The acceptance that ×3 and ×10 would take at the best window, by theorem 3.8, beside what is accepted "
        "and gained here.",
        rule="Holds if some kind of text gets ×3 here. Under conditions if some kind's acceptance is enough for ×3 "
        "with a draft that costs a tenth.",
        experiment=three_to_ten,
        judge=judge_three_to_ten,
    ),
    Claim(
        id="seven-two",
        topic=TOPIC,
        quote="7.2x average speedup … a 1.5B parameter draft model with a 175B parameter target model",
        source=NEWSLETTER,
        tested="The acceptance that it would take, by theorem 3.8 with the ratio of sizes as c, beside what a draft "
        "distilled for its target gets here. Their pair itself is too large for this.",
        rule=f"Holds if {PLAIN} has that acceptance. Under conditions if another kind of text has.",
        experiment=seven_two,
        judge=judge_seven_two,
    ),
)
