"""Speculative decoding without a cache."""


def speculate(target, draft, prompt, tokens, gamma):
    text = list(prompt)
    while len(text) < len(prompt) + tokens:
        guess = list(text)
        for _ in range(gamma):
            guess.append(draft(guess)[-1].argmax().item())
        best = target(guess)[-gamma - 1 :].argmax(-1).tolist()
        accepted = 0
        while accepted < gamma and guess[len(text) + accepted] == best[accepted]:
            accepted += 1
        if accepted == gamma:
            text = guess
        else:
            text += best[: accepted + 1]
    return text[len(prompt) : len(prompt) + tokens]
