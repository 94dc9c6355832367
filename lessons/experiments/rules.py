"""``rules``: three ways to accept a proposal or replace it, on a vocabulary so small that distributions can be seen.

A word is proposed from q many times, and accepted or replaced by each rule. The outcome is compared with p.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from pydantic import Field

from lab.backends.torch.rejection_sampler import rejection_sample, residual
from lab.backends.torch.sampler import draw
from lab.claims.acceptance_rules import Context, Draws, by_target, with_target
from lessons.experiments.base import Experiment, Load, Measured, Watch, Work

PORTION = 250
"""Proposals verified at once; after each portion the distance of the outcome from p is recorded."""
RULES = {
    "target_alone": "drawn from p, with no proposal: how far chance alone strays",
    "residual": "accepted with min(1, p/q), else redrawn from max(p - q, 0)",
    "redrawn_from_p": "accepted with min(1, p/q), else redrawn from p",
    "without_q": "accepted with min(1, p), else redrawn from p without the rejected word",
}
FIGURES = {
    "shares": "of each word among what came out",
    "distance": "total variation from p: the share of draws that would have to be others",
    "draws": "after so many draws",
    "distances": "that distance was this",
    "accepted": "share of proposals that were kept",
    "law_distance": "the same distance for endless draws, by calculation",
    "law_accepted": "and the same share",
}


class Rules(Experiment):
    """p and q over ``words`` words, drawn with a seed: the larger ``apart``, the less alike."""

    arithmetic = True

    words: int = Field(default=8, ge=2, le=12)
    draws: int = Field(default=2000, ge=100, le=200_000)
    apart: float = Field(default=1.0, gt=0, le=4)
    seed: int = Field(default=1, ge=0)

    def names(self) -> Mapping[str, Any]:
        rules = dict.fromkeys(RULES, dict.fromkeys(FIGURES))
        return {"words": {"p": None, "q": None}, "argmax": {"law_accepted": None}} | rules

    def work(self, load: Load, cancelled: threading.Event, watch: Watch) -> Work:
        random = torch.Generator().manual_seed(self.seed)
        common, own, others = torch.randn(3, self.words, generator=random, dtype=torch.float64)
        p, q = (common + self.apart * own).softmax(-1), (common + self.apart * others).softmax(-1)
        target = p.tolist()
        counts = {rule: torch.zeros(self.words, dtype=torch.float64) for rule in RULES}
        accepted = dict.fromkeys(RULES, 0)
        draws: list[int] = []
        distances: dict[str, list[float]] = {rule: [] for rule in RULES}
        for done in range(0, self.draws, PORTION):
            if cancelled.is_set():
                return Measured({})
            watch(f"{done:,} of {self.draws:,} words drawn by each rule", done / self.draws)
            size = min(PORTION, self.draws - done)
            draws.append(done + size)
            for rule in RULES:
                words, kept = by_rule(rule, p, q, torch.rand(3, size, generator=random, dtype=torch.float64))
                counts[rule] += torch.bincount(words, minlength=self.words)
                accepted[rule] += int(kept.sum())
                distances[rule].append(variation((counts[rule] / draws[-1]).tolist(), target))
            yield
        found: dict[str, dict[str, Any]] = {"words": {"p": target, "q": q.tolist()}}
        found["argmax"] = {"law_accepted": p[q.argmax()].item()}  # a greedy draft's word is accepted with its p
        for rule in RULES:
            shares = (counts[rule] / self.draws).tolist()
            law, chance = law_of(rule, p, q)
            found[rule] = {
                "shares": shares,
                "distance": variation(shares, target),
                "draws": draws,
                "distances": distances[rule],
                "accepted": accepted[rule] / self.draws,
                "law_distance": variation(law.tolist(), target),
                "law_accepted": chance,
            }
        return Measured(found)


def by_rule(rule: str, p: torch.Tensor, q: torch.Tensor, u: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The words that come out, [n] int64, and which of them are proposals that were kept, [n] bool.

    Args:
        p, q: [words] float64.
        u: [3, n] float64 in [0, 1): for each proposal, each verdict, each redraw.
    """
    if rule == "target_alone":
        return draw(p, u[2]), torch.zeros(u.shape[1], dtype=torch.bool)
    proposals = draw(q, u[0])
    if rule == "residual":  # the engine's own rule
        rows = p.expand(u.shape[1], 2, -1), q.expand(u.shape[1], 1, -1)
        uniforms = u[1][:, None], u[2][:, None].expand(-1, 2)  # of the verdict, and of the token after it
        verdict = rejection_sample(*rows, proposals[:, None], *uniforms)
        kept = verdict.accepted > 0
        return torch.where(kept, proposals, verdict.next_token), kept
    other = by_target if rule == "without_q" else with_target
    kept, words = other(Context(p, q), Draws(proposals, u[1], u[2]))
    return words, kept


def law_of(rule: str, p: torch.Tensor, q: torch.Tensor) -> tuple[torch.Tensor, float]:
    """The distribution that a rule gives in the end, by calculation, and the share of proposals that it keeps."""
    if rule == "target_alone":
        return p, 0.0
    kept, replaced = parts_of(rule, p, q)
    return kept + replaced, float(kept.sum())


def parts_of(rule: str, p: torch.Tensor, q: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Probabilities that each word is proposed and accepted, and that it replaces a rejected one; [words] each."""
    kept = q * (p if rule == "without_q" else (p / q).clamp_max(1))
    rejected = q - kept
    if rule == "without_q":
        return kept, p * (rejected / (1 - p)).sum() - p * rejected / (1 - p)
    weights = residual(p, q) if rule == "residual" else p
    return kept, rejected.sum() * weights / weights.sum()


def moved(p: torch.Tensor, q: torch.Tensor, to: float) -> torch.Tensor:
    """q moved relative to p: at 0 it is p, at 1 it is q, and beyond 1 it is less like p than q is. [words]."""
    return torch.lerp(p.log(), q.log(), to).softmax(-1)


class Picture(NamedTuple):
    """Probabilities of each word, in rising order of q / p."""

    p: list[float]
    q: list[float]
    accepted: list[float]
    replaced: list[float]


def picture(rule: str, p: Sequence[float], q: Sequence[float], to: float) -> Picture:
    """Outcome of a rule with q ``moved``."""
    target, draft = (torch.tensor(some, dtype=torch.float64) for some in (p, q))
    order = (draft / target).argsort()
    target, draft = target[order], moved(target[order], draft[order], to)
    return Picture(*(some.tolist() for some in (target, draft, *parts_of(rule, target, draft))))


def variation(a: Sequence[float], b: Sequence[float]) -> float:
    """Total variation distance: what one distribution has over the other."""
    return float(sum(max(x - y, 0.0) for x, y in zip(a, b, strict=True)))
