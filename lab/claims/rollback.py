"""Speculation by hand on the engine's own forward pass, with rejected tokens removed from the cache, or left in it."""

from __future__ import annotations

import statistics
from typing import NamedTuple

import torch

from lab.backends.interface import Backend, NewTokens
from lab.backends.torch.rejection_sampler import greedy_verify
from lab.claims.claim import GAMMA, TUTORIAL, Claim, Found, Number, Values, Verdict, plain
from lab.claims.trial import Trial
from lab.config import EngineConfig
from lab.engine.engine import Engine
from lab.kv_cache.block_pool import BlockPool
from lab.kv_cache.block_table import BlockTable
from lab.measure.difference import common_length
from lab.measure.prompts import held_out_prompts
from lab.measure.score import divergence, new_storage


class Written(NamedTuple):
    """``left``: rejected tokens still in the cache. ``kl``: nats from the right distribution, mean over rounds."""

    token_ids: list[int]
    left: int
    kl: float


@torch.inference_mode()
def speculate(engine: Engine, prompt: list[int], tokens: int, *, roll_back: bool) -> Written:
    """Greedy speculation for one sequence, one round per pass.

    Rolling back sets a number: the position that the next token is written to. Without rollback that number goes on
    past the rejected tokens, and attention sees them.
    """
    target, draft = engine.backends(EngineConfig())
    room = len(prompt) + (GAMMA + 1) * (tokens + 1)  # every round gives at least one token
    blocks = -(-room // EngineConfig.block_size)
    table = BlockTable(BlockPool(blocks, EngineConfig.block_size), 0, lambda *_, **__: None, paged=False)
    table.allocate_slots(room)
    storage = new_storage(engine, EngineConfig(), blocks * EngineConfig.block_size)

    def after(backend: Backend, ids: list[int]) -> torch.Tensor:
        """Logits after a text, computed afresh."""
        return backend.forward([NewTokens(torch.tensor(ids, device=backend.model.device), 0, None, 1)], None)[0]

    text, pending, cached, left, kl = list(prompt), list(prompt), 0, 0, []
    while len(text) - len(prompt) < tokens:
        guesses: list[int] = []
        for _ in range(GAMMA):
            guesses.append(after(draft, text + guesses).argmax().item())
        new = torch.tensor(pending + guesses, device=target.model.device)
        logits = target.forward([NewTokens(new, cached, table, GAMMA + 1)], storage)
        kl.append(divergence(*(one.double().log_softmax(-1) for one in (after(target, text), logits[0]))).item())
        accepted, token = greedy_verify(logits.argmax(-1), new[-GAMMA:])
        kept = accepted.item()
        cached += len(pending) + (kept if roll_back else GAMMA)
        left += 0 if roll_back else GAMMA - kept
        pending = [token.item()]
        text += [*guesses[:kept], token.item()]
    return Written(text[len(prompt) : len(prompt) + tokens], left, statistics.mean(kl))


def without_rollback(trial: Trial) -> Found:
    engine = trial.engine("matched")
    prompts, tokens = held_out_prompts()[: 2 if trial.small else 6], 16 if trial.small else 64
    places, control, left, kl = [], [], [], []
    for done, prompt in enumerate(prompts, 1):
        trial.report(f"text {done} of {len(prompts)}")

        def work(prompt: str = prompt) -> tuple[list[int], Written, Written]:
            plain_run = trial.generate(engine, prompt, EngineConfig(), tokens)
            ids = list(plain_run.prompt_token_ids)
            rolled, stale = (speculate(engine, ids, tokens, roll_back=way) for way in (True, False))
            return list(plain_run.token_ids), rolled, stale

        right, rolled, stale = trial.measure(work)
        control.append(common_length(right, rolled.token_ids))
        places.append(common_length(right, stale.token_ids))
        left.append(stale.left)
        kl.append(stale.kl)
    return Found(
        (
            Number("texts", f"greedy texts of {tokens} tokens", len(prompts)),
            Number("control", "with rollback: the same as plain decoding", control.count(tokens)),
            Number("same", "without rollback: the same", places.count(tokens)),
            Number("place", "without: the same up to token, median", statistics.median(places)),
            Number("left", "rejected tokens left in the cache, a text", statistics.mean(left)),
            Number("kl", "divergence from the right distribution, a round", statistics.mean(kl), "nats"),
            Number("stays", "share of the text that stays the same", sum(places) / (tokens * len(places)), "%"),
        )
    )


def judge_rollback(values: Values) -> Verdict:
    texts, same = values["texts"], values["same"]
    if same == texts and values["left"]:
        return Verdict("holds", f"All {plain(texts)} texts stay the same with {plain(values['left'])} tokens left in.")
    why = (
        f"{plain(same)} of {plain(texts)} texts stay the same; they part after {plain(values['place'])} tokens "
        f"(median), and the distributions are {plain(values['kl'])} nats off: attention sees rejected tokens. With "
        f"rollback {plain(values['control'])} of {plain(texts)} stay the same."
    )
    needs = "A draft that is never rejected, or a cache cut back to what was kept."
    return Verdict("conditions" if values["stays"] >= 0.9 else "fails", why, needs)


CLAIMS = (
    Claim(
        id="no-rollback",
        topic="Accepting and redrawing",
        quote="target_kv_cache = target_outputs.past_key_values",
        source=TUTORIAL,
        tested="A verify's cache goes on to the next round as it is, rejected tokens and all. Greedy speculation by "
        "hand on the embedded pair, with that and with rollback, beside plain decoding. This is the milder half of the "
        "error: the article's loop also gives both models the whole text once more on top of their caches in "
        "every round but the first.",
        rule="Holds if all texts stay the same although tokens were rejected. Under conditions if 90% of them do, "
        "counted in tokens up to where each parts.",
        experiment=without_rollback,
        judge=judge_rollback,
    ),
)
