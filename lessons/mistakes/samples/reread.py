"""Speculative decoding with a cache for each model."""


def read(model, text, cache):
    """The logits after the last tokens of the text."""
    return model(text, cache)


def speculate(target, draft, prompt, tokens, gamma, target_cache, draft_cache):
    text = list(prompt)
    while len(text) < len(prompt) + tokens:
        guess = list(text)
        for _ in range(gamma):
            guess.append(read(draft, guess, draft_cache)[-1].argmax().item())
        best = read(target, guess, target_cache)[-gamma - 1 :].argmax(-1).tolist()
        accepted = 0
        while accepted < gamma and guess[len(text) + accepted] == best[accepted]:
            accepted += 1
        text += best[: accepted + 1]
    return text[len(prompt) : len(prompt) + tokens]
