"""Exactness of rules that accept and redraw (``lab.claims.acceptance_rules``), and of a cache without rollback.

Draft tokens are drawn from the draft's own distributions after real texts, and each rule decides on thousands of them.
The outcome is compared with the target's distribution by a G-test. A wrong rule, a redraw from p itself, goes through
the same test, to show that the test would notice one.
"""

import statistics
from functools import partial
from typing import NamedTuple

import torch

from lab.backends.interface import Backend, NewTokens
from lab.backends.torch.rejection_sampler import greedy_verify, typical_threshold
from lab.backends.torch.sampler import distribution, draw
from lab.claims.acceptance_rules import (
    AcceptanceRule,
    Context,
    Draws,
    by_target,
    by_threshold,
    with_absolute,
    with_residual,
    with_target,
)
from lab.claims.claim import Figures
from lab.claims.speculation import GAMMA
from lab.claims.trial import Trial
from lab.config import EngineConfig, SamplingParams
from lab.engine.adaptive_window import tokens_per_round
from lab.engine.engine import Engine
from lab.errors import LabError
from lab.kv_cache.block_pool import BlockPool
from lab.kv_cache.block_table import BlockTable
from lab.kv_cache.kv_cache import new_storage
from lab.measure.difference import common_length
from lab.measure.interval import g_test
from lab.measure.score import divergence
from lab.measure.workload import held_out_prompts

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


def p_value(rule: AcceptanceRule, places: list[Context], draft_tokens: int) -> tuple[float, float]:
    """The G-test's p-value over all texts, and the share of draft tokens accepted. The draws are the same for all."""
    generator, worst, share = torch.Generator().manual_seed(0), 1.0, 0.0
    for context in places:
        u_draft, u, u_next = torch.rand(3, draft_tokens, dtype=torch.float64, generator=generator)
        accepted, token = rule(context, Draws(draw(context.q, u_draft), u, u_next))
        counts = torch.bincount(token, minlength=len(context.p))
        worst = min(worst, g_test(counts, context.p / context.p.sum(), least=LEAST))
        share += accepted.double().mean().item() / len(places)
    return min(1.0, worst * len(places)), share  # Bonferroni: the worst of so many tests


def control(places: list[Context], draft_tokens: int) -> float:
    """The p-value of a redraw from p. Raises LabError if it is not noticed: then the test says nothing about others."""
    value, _ = p_value(with_target, places, draft_tokens)
    if value >= NOTICED:
        raise LabError(
            f"The test does not notice a wrong rule here (p-value {value:.2g}), so it says nothing about others."
        )
    return value


def draft_tokens_each(trial: Trial) -> int:
    trial.report("drawing and verifying draft tokens")
    return 4_000 if trial.small else 40_000


def accept_by_target(trial: Trial) -> Figures:
    places, draft_tokens = trial.once(contexts), draft_tokens_each(trial)

    def work() -> Figures:
        value, rate = p_value(by_target, places, draft_tokens)
        standard, standard_rate = p_value(with_residual, places, draft_tokens)
        pq = sum((p * q).sum().item() for p, q in places) / len(places)
        shared = sum(torch.minimum(p, q).sum().item() for p, q in places) / len(places)
        return Figures(
            {
                "exact": value,
                "control": control(places, draft_tokens),
                "standard": standard,
                "rate": rate,
                "pq": pq,
                "standard_rate": standard_rate,
                "shared": shared,
                # The article's loop draws no bonus token: a fully accepted round gives gamma tokens.
                "tokens": tokens_per_round(pq, GAMMA - 1),
                "standard_tokens": tokens_per_round(shared, GAMMA),
            }
        )

    return trial.measure(work)


def accept_by_threshold(trial: Trial) -> Figures:
    places, draft_tokens = trial.once(contexts), draft_tokens_each(trial)

    def off(context: Context) -> float:
        """Total variation between p and what comes out, by calculation."""
        p, q = context
        kept = torch.where(p > typical_threshold(p), q, 0.0)
        return (kept - kept.sum() * p).abs().sum().item() / 2

    def work() -> Figures:
        value, rate = p_value(by_threshold, places, draft_tokens)
        standard, standard_rate = p_value(with_residual, places, draft_tokens)
        return Figures(
            {
                "exact": value,
                "standard": standard,
                "rate": rate,
                "standard_rate": standard_rate,
                "off": statistics.mean(map(off, places)),
            }
        )

    return trial.measure(work)


def redraw_from_difference(trial: Trial) -> Figures:
    places, draft_tokens = trial.once(contexts), draft_tokens_each(trial)

    def work() -> Figures:
        raised = 0
        for p, q in places:
            try:
                torch.multinomial(p - q, 1)
            except RuntimeError:  # probability tensor contains either `inf`, `nan` or element < 0
                raised += 1
        return Figures(
            {
                "places": len(places),
                "raised": raised,
                "negative": sum((q - p).clamp_min(0).sum().item() for p, q in places) / len(places),
                "absolute": p_value(with_absolute, places, draft_tokens)[0],
                "clamped": p_value(with_residual, places, draft_tokens)[0],
                "control": control(places, draft_tokens),
            }
        )

    return trial.measure(work)


# -- rollback --------------------------------------------------------------------------------


class Written(NamedTuple):
    """``left``: rejected tokens still in the cache. ``kl``: nats from the right distribution, mean over rounds."""

    token_ids: list[int]
    left: int
    kl: float


@torch.inference_mode()
def speculate(engine: Engine, prompt: list[int], tokens: int, *, roll_back: bool) -> Written:
    """Greedy speculation by hand for one sequence, one round per pass.

    Rolling back sets a number: the position that the next token is written to. Without rollback that number goes on
    past the rejected tokens, and attention sees them.
    """
    target, draft = engine.backends(EngineConfig())
    room = len(prompt) + (GAMMA + 1) * (tokens + 1)  # every round gives at least one token
    blocks = -(-room // EngineConfig.block_size)
    table = BlockTable(BlockPool(blocks, EngineConfig.block_size), 0, lambda *_, **__: None, paged=False)
    table.allocate_slots(room)
    storage = new_storage(engine.target, EngineConfig.kv_dtype, blocks * EngineConfig.block_size)

    def after(backend: Backend, ids: list[int]) -> torch.Tensor:
        """Logits after a text, computed afresh."""
        return backend.forward([NewTokens(torch.tensor(ids, device=backend.model.device), 0, None, 1)], None)[0]

    text, pending, cached, left, kl = list(prompt), list(prompt), 0, 0, []
    while len(text) - len(prompt) < tokens:
        proposed: list[int] = []
        for _ in range(GAMMA):
            proposed.append(after(draft, text + proposed).argmax().item())
        new = torch.tensor(pending + proposed, device=target.model.device)
        logits = target.forward([NewTokens(new, cached, table, GAMMA + 1)], storage)
        kl.append(divergence(*(one.double().log_softmax(-1) for one in (after(target, text), logits[0]))).item())
        found = greedy_verify(logits.argmax(-1), new[-GAMMA:])
        token = found.next_token
        accepted = found.accepted.item()
        cached += len(pending) + (accepted if roll_back else GAMMA)
        left += 0 if roll_back else GAMMA - accepted
        pending = [token.item()]
        text += [*proposed[:accepted], token.item()]
    return Written(text[len(prompt) : len(prompt) + tokens], left, statistics.mean(kl))


def without_rollback(trial: Trial, *, texts: int, tokens: int) -> Figures:
    """Greedy texts with rejected tokens left in the cache, and with rollback, beside plain decoding."""
    engine = trial.engine("matched")
    texts, tokens = (2, 16) if trial.small else (texts, tokens)

    def work(prompt: str) -> tuple[list[int], Written, Written]:
        run = trial.generate(engine, prompt, EngineConfig(), tokens)
        ids = list(run.prompt_token_ids)
        return list(run.token_ids), *(speculate(engine, ids, tokens, roll_back=way) for way in (True, False))

    places, rolled_places, stale_texts = [], [], []
    for done, prompt in enumerate(held_out_prompts()[:texts], 1):
        trial.begin(f"text {done} of {texts}", done, texts)
        right, rolled, stale = trial.measure(partial(work, prompt))
        rolled_places.append(common_length(right, rolled.token_ids))
        places.append(common_length(right, stale.token_ids))
        stale_texts.append(stale)
    values = {
        "texts": texts,
        "control": rolled_places.count(tokens),
        "same": places.count(tokens),
        "place": statistics.median(places),
        "left": statistics.mean(one.left for one in stale_texts),
        "kl": statistics.mean(one.kl for one in stale_texts),
        "stays": sum(places) / (tokens * texts),
    }
    return Figures(values, words={"tokens": tokens})
