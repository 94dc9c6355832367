"""Speculative decoding with a batch of one text: ids is [1, length]."""

import torch


def speculate(target, draft, prompt, tokens, gamma):
    ids = torch.tensor([prompt])
    while ids.shape[1] < len(prompt) + tokens:
        guess = ids
        for _ in range(gamma):
            token = draft(guess[0].tolist())[-1].argmax()
            guess = torch.cat([guess, token.view(1, 1)], 1)
        logits = target(guess[0].tolist())
        n = len(ids)
        best = logits[n - 1 :].argmax(-1)
        drafted = guess[0, ids.shape[1] :]
        right = (drafted == best[:gamma]).long().cumprod(0)
        accepted = int(right.sum())
        new = torch.cat([drafted[:accepted], best[accepted : accepted + 1]])
        ids = torch.cat([ids, new[None]], 1)
    return ids[0, len(prompt) : len(prompt) + tokens].tolist()
