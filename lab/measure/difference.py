"""The first difference between the outputs of several settings, and the target's margin there under each.

A run records how likely its own token was. To find out how likely the other run's token was, and the second likeliest,
the target reads the run's text again as the run decoded it (``lab.measure.score``).
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import torch

from lab.backends.torch.sampler import distribution
from lab.config import EngineConfig
from lab.engine.engine import Engine
from lab.measure.score import log_probabilities
from lab.trace.events import Committed
from lab.trace.run import Run

DRAWING = ("draft", "eagle3", "mtp", "dflash", "dspark", "early_exit", "ngram")
"""Drafters whose draft tokens are accepted or rejected by a random draw; others' are accepted if the target draws the
same."""
OTHER_DRAWS = (
    "Above temperature 0, speculation uses the seed's draws differently: the same seed gives other tokens than without "
    "it, or with other draft tokens. They are drawn from the same distribution, so this is no difference in quality; "
    "but for rejection_sample_method=typical, which is lossy."
)


@dataclass(frozen=True)
class DivergentToken:
    """A run's token at a place where another wrote something else. Probabilities are the target's under the run's
    setting, after temperature, top-k and top-p; for a greedy run, before them.

    Attributes:
        text: its piece of the text.
        p: probability of its token, as the run recorded it.
        other_p: probability of the token that the other run wrote there. None: the other has ended.
        margin: probability of the likeliest token minus that of the second likeliest.
    """

    text: str
    p: float
    other_p: float | None
    margin: float


@dataclass(frozen=True)
class Difference:
    """Two outputs that part after ``place`` tokens. None: that output has ended."""

    place: int
    a: DivergentToken | None
    b: DivergentToken | None


def draws(config: EngineConfig) -> tuple[Any, ...]:
    """The settings that determine which random draws a round uses; empty if no draft token is verified by one."""
    if config.speculative not in DRAWING:
        return ()
    own = {"early_exit": (config.early_exit_layer,), "ngram": (config.prompt_lookup_min, config.prompt_lookup_max)}.get(
        config.speculative
    )
    rules = config.rejection_sample_method, config.draft_sample_method
    gammas = config.num_speculative_tokens, config.num_speculative_tokens_per_batch_size, config.adaptive_window
    return config.speculative, *gammas, own, *rules


def common_length(a: Sequence[int], b: Sequence[int]) -> int:
    """Tokens before the first difference."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def first_difference(a: Run, b: Run) -> int | None:
    """Number of tokens before the first that differs. None: the tokens are the same."""
    place = common_length(a.token_ids, b.token_ids)
    return None if place == len(a.token_ids) == len(b.token_ids) else place


def first_differences(engine: Engine, runs: Mapping[str, Run]) -> dict[tuple[str, str], Difference]:
    """The difference between every two ``runs`` of one prompt by ``engine`` whose tokens are not the same.

    Each text is read again once, many tokens per forward pass: where that rounds differently than decoding does, its
    probabilities may differ as well.
    """
    pairs = combinations(runs, 2)
    places = {pair: first_difference(*(runs[name] for name in pair)) for pair in pairs}
    places = {pair: place for pair, place in places.items() if place is not None}
    read = {}
    for name, run in runs.items():
        own = {place for pair, place in places.items() if name in pair and place < len(run.token_ids)}
        read[name] = read_again(engine, run, own)

    def choice(own: str, other: str, place: int) -> DivergentToken | None:
        run, others = runs[own], runs[other].token_ids[place : place + 1]
        if place >= len(run.token_ids):
            return None
        text, p = _written(run, place)
        first, second = read[own][place].topk(2).values.tolist()
        return DivergentToken(text, p, read[own][place][others[0]].item() if others else None, first - second)

    return {(a, b): Difference(place, choice(a, b, place), choice(b, a, place)) for (a, b), place in places.items()}


def read_again(engine: Engine, run: Run, places: Collection[int]) -> dict[int, torch.Tensor]:
    """The distributions, each [vocabulary] float32 on the host, that ``run`` drew its tokens at ``places`` from."""
    if not places:
        return {}
    prompt, found, before = run.prompt_token_ids, {}, 0
    text = [*prompt, *run.token_ids[: max(places) + 1]]
    for rows in log_probabilities(engine, text, run.config, first=len(prompt)):
        for place in places:
            if before <= place < before + len(rows):
                found[place] = distribution(rows[place - before].float(), run.sampling).cpu()
        before += len(rows)
    return found


def _written(run: Run, place: int) -> tuple[str, float]:
    """The text and the recorded probability of a run's token."""
    before = 0
    for event in run.events:
        if isinstance(event, Committed):
            if place < before + len(event.token_ids):
                return event.pieces[place - before], event.probabilities[place - before]
            before += len(event.token_ids)
    raise AssertionError("a token that no commit has")
