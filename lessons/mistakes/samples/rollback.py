"""Speculative decoding; the target has a cache and reads only what is new."""


def speculate(target, draft, prompt, tokens, gamma, cache):
    text, unread = list(prompt), list(prompt)
    while len(text) < len(prompt) + tokens:
        guess = list(text)
        for _ in range(gamma):
            guess.append(draft(guess)[-1].argmax().item())
        drafted = guess[len(text) :]
        best = target(unread + drafted, cache)[-gamma - 1 :].argmax(-1).tolist()
        accepted = 0
        while accepted < gamma and drafted[accepted] == best[accepted]:
            accepted += 1
        text += best[: accepted + 1]
        unread = text[-1:]
    return text[len(prompt) : len(prompt) + tokens]
