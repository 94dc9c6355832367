"""The acceptance rule of speculative sampling, for many draft tokens at one place."""

import torch


def verify(p, q, drafted, u):
    """p, q: [vocabulary] probabilities of the target and the draft.
    drafted: [n] tokens drawn from q. u: [n] random numbers from 0 to 1."""
    chance = p[drafted].clamp(max=1)
    accepted = u < chance
    weights = (p - q).clamp(min=0)
    redrawn = torch.multinomial(weights, len(drafted), replacement=True)
    return accepted, torch.where(accepted, drafted, redrawn)
