"""Whether the target's distribution comes out of several rules that accept and redraw (``lab.claims.rules``).

Guesses are drawn from the draft's own distributions after real texts, and each rule judges thousands of them. The
outcome is compared with the target's distribution by a G-test. A wrong rule, a redraw from p itself, goes through
the same test, to show that the test would notice one.
"""

from __future__ import annotations

import torch

from lab.backends.interface import Backend, NewTokens
from lab.backends.torch.sampler import distribution, draw
from lab.claims.claim import COURSE, GAMMA, TUTORIAL, Claim, Found, Number, Values, Verdict, percent, plain
from lab.claims.rules import Context, Draws, Rule, by_target, with_absolute, with_residual, with_target
from lab.claims.trial import Trial
from lab.config import EngineConfig, SamplingParams
from lab.engine.adaptive_window import tokens_per_round
from lab.errors import LabError
from lab.measure.goodness_of_fit import g_test
from lab.measure.prompts import held_out_prompts

TOPIC = "Accepting and redrawing"
TEMPERATURE = 0.8
NOTICED = 1e-6
"""A p-value below this counts as wrong: a correct rule gets there once in a million tests."""
LEAST = 10.0


def contexts(trial: Trial) -> list[Context]:
    """Both distributions after beginnings that neither model was trained on. Raises Stopped."""
    engine, sampling = trial.engine("matched"), SamplingParams(temperature=TEMPERATURE)

    @torch.inference_mode()
    def after(backend: Backend, ids: torch.Tensor) -> torch.Tensor:
        logits = backend.forward([NewTokens(ids.to(backend.model.device), 0, None, 1)], None)
        return distribution(logits, sampling)[0].double().cpu()

    def work() -> list[Context]:
        texts = [torch.tensor(engine.tokenizer(prompt)["input_ids"]) for prompt in held_out_prompts()]
        target, draft = engine.backends(EngineConfig(kv_cache=False))
        return [Context(after(target, ids), after(draft, ids)) for ids in texts[: 4 if trial.small else 16]]

    return trial.measure(work)


def p_value(rule: Rule, places: list[Context], guesses: int) -> tuple[float, float]:
    """The G-test's p-value over all texts, and the share of guesses kept. The draws are the same for all rules."""
    generator, worst, kept_share = torch.Generator().manual_seed(0), 1.0, 0.0
    for context in places:
        u_guess, u, u_next = torch.rand(3, guesses, dtype=torch.float64, generator=generator)
        kept, token = rule(context, Draws(draw(context.q, u_guess), u, u_next))
        counts = torch.bincount(token, minlength=len(context.p))
        worst = min(worst, g_test(counts, context.p / context.p.sum(), least=LEAST))
        kept_share += kept.double().mean().item() / len(places)
    return min(1.0, worst * len(places)), kept_share  # Bonferroni: the worst of so many tests


def control(places: list[Context], guesses: int) -> Number:
    """Raises LabError if the test does not notice a redraw from p: then it says nothing about other rules."""
    value, _ = p_value(with_target, places, guesses)
    if value >= NOTICED:
        raise LabError(
            f"The test does not notice a wrong rule here (p-value {value:.2g}), so it says nothing about others."
        )
    return Number("control", "G-test of the wrong rule (redraw from p), p-value", value)


def guesses_after_each(trial: Trial) -> int:
    return 4_000 if trial.small else 40_000


# -- min(1, p) -------------------------------------------------------------------------------


def accept_by_target(trial: Trial) -> Found:
    trial.report("drawing and judging guesses")
    places, guesses = trial.once(contexts), guesses_after_each(trial)

    def work() -> Found:
        value, kept = p_value(by_target, places, guesses)
        standard, standard_kept = p_value(with_residual, places, guesses)
        pq = sum((p * q).sum().item() for p, q in places) / len(places)
        shared = sum(torch.minimum(p, q).sum().item() for p, q in places) / len(places)
        return Found(
            (
                Number("exact", "G-test of the article's rule, p-value", value),
                control(places, guesses),
                Number("standard", "G-test of the papers' rule, p-value", standard),
                Number("kept", "guesses kept by the article's rule", kept, "%"),
                Number("pq", "sum of p q, what it keeps on average", pq, "%", "formula"),
                Number("standard_kept", "guesses kept by the papers' rule", standard_kept, "%"),
                Number("shared", "sum of min(p, q), what that keeps", shared, "%", "formula"),
                # The article's loop draws no bonus token: a fully accepted round gives gamma tokens.
                Number("tokens", f"tokens a pass, γ {GAMMA}, article", tokens_per_round(pq, GAMMA - 1), "", "formula"),
                Number("standard_tokens", "tokens a pass, papers", tokens_per_round(shared, GAMMA), "", "formula"),
            )
        )

    return trial.measure(work)


def judge_by_target(values: Values) -> Verdict:
    if values["exact"] < NOTICED:
        return Verdict("fails", "What comes out does not follow the target.", "min(1, p / q), and max(p − q, 0).")
    price = (
        f"it keeps {percent(values['kept'])} of the guesses where min(1, p / q) keeps "
        f"{percent(values['standard_kept'])}: {plain(values['tokens'])} tokens a pass instead of "
        f"{plain(values['standard_tokens'])}"
    )
    if values["kept"] >= 0.9 * values["standard_kept"]:
        return Verdict("holds", f"Exact, and {price}.")
    needs = "min(1, p / q) with a redraw from max(p − q, 0). No exact rule that judges each guess by itself keeps more."
    return Verdict("conditions", f"Exact, at a price: {price}.", needs)


# -- p - q as it stands ----------------------------------------------------------------------


def redraw_from_difference(trial: Trial) -> Found:
    trial.report("drawing and judging guesses")
    places, guesses = trial.once(contexts), guesses_after_each(trial)

    def work() -> Found:
        raised = 0
        for p, q in places:
            try:
                torch.multinomial(p - q, 1)
            except RuntimeError:  # probability tensor contains either `inf`, `nan` or element < 0
                raised += 1
        negative = sum((q - p).clamp_min(0).sum().item() for p, q in places) / len(places)
        absolute, _ = p_value(with_absolute, places, guesses)
        clamped, _ = p_value(with_residual, places, guesses)
        return Found(
            (
                Number("places", "texts after which a token was redrawn", len(places)),
                Number("raised", "of which torch.multinomial(p − q) fails", raised),
                Number("negative", "sum of its negative parts", negative, "%", "formula"),
                Number("absolute", "G-test with signs dropped, |p − q|, p-value", absolute),
                Number("clamped", "G-test with negative parts set to 0, p-value", clamped),
                control(places, guesses),
            )
        )

    return trial.measure(work)


def judge_difference(values: Values) -> Verdict:
    raised, places = plain(values["raised"]), plain(values["places"])
    if not values["raised"] and values["absolute"] >= NOTICED:
        return Verdict("holds", "It can be drawn from as it is, and the target's distribution comes out.")
    why = f"p − q has negative parts, and a program that draws from it stops after {raised} of {places} texts."
    if values["absolute"] < NOTICED:
        p_value = "below 1e-300" if values["absolute"] < 1e-300 else f"{values['absolute']:.1g}"
        why += f" With their signs dropped it runs and is wrong (p-value {p_value})."
    needs = "max(p − q, 0), the residual: one clamp."
    if values["clamped"] >= NOTICED:
        return Verdict("conditions", f"With its negative parts set to 0. {why}", needs)
    return Verdict("fails", why, needs)


CLAIMS = (
    Claim(
        id="accept-by-p",
        topic=TOPIC,
        quote="if torch.rand(1).item() < min(1.0, draft_prob)",
        source=TUTORIAL,
        tested="The article's draft_prob is the target's probability of the guess (target_probs[draft_token]), so a "
        "guess is kept with probability p; else a token is drawn from p without it. "
        "Thousands of guesses after texts of the embedded pair, the result tested against p by a G-test; a "
        "wrong rule goes through the same test, to show that it would be noticed.",
        rule=f"Holds if it is exact (p-value of {NOTICED:g} or more, the wrong rule's below) and keeps at least 90% of "
        "what min(1, p / q) keeps. Under conditions if it is exact and keeps less.",
        experiment=accept_by_target,
        judge=judge_by_target,
    ),
    Claim(
        id="redraw-p-minus-q",
        topic=TOPIC,
        quote="correction = sample_from(target_p - draft_p)  # Simplified",
        source=COURSE,
        tested="The article calls the line simplified and leaves open what it stands for. So p − q are the weights of "
        "a redraw: given to torch as they are, with signs dropped, and with negative parts set to 0, each result "
        "tested against p by the same G-test.",
        rule=f"Holds if it runs and is exact as it is (p-value of {NOTICED:g} or more). Under conditions if it is "
        "with negative parts set to 0.",
        experiment=redraw_from_difference,
        judge=judge_difference,
    ),
)
