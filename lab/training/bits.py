"""How well a model predicts a text, in a unit that compares across tokenizers: bits per byte."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch.nn import functional as F
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from lab.training.corpus import encode


@dataclass(frozen=True)
class CrossEntropy:
    """What some texts cost a model: ``bits`` = sum of -log2 p over all their ``tokens``."""

    bits: float
    tokens: int
    bytes: int

    @property
    def bits_per_byte(self) -> float:
        return self.bits / self.bytes

    @property
    def nats_per_token(self) -> float:
        return self.bits * math.log(2) / self.tokens

    def __add__(self, other: CrossEntropy) -> CrossEntropy:
        return CrossEntropy(self.bits + other.bits, self.tokens + other.tokens, self.bytes + other.bytes)


@torch.no_grad()
def cross_entropy(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, texts: list[str], *, rows: int = 8
) -> CrossEntropy:
    """Surprise over every token of every text, each text preceded by one end-of-text token.

    Windows are as long as the model's context and advance by half of it; a window
    scores the tokens that the one before it did not. A token is thus predicted from
    all that comes before it in its text, or from at least half a context.
    """
    context = model.config.max_position_embeddings
    end = tokenizer.eos_token_id
    windows, first_scored, tokens = [], [], 0
    for text in texts:
        ids = [end, *encode(tokenizer, [text])[:-1].tolist()]
        tokens += len(ids) - 1
        scored = 1  # of ids; the first is context only
        while scored < len(ids):
            start = 0 if scored == 1 else scored - context // 2
            windows.append(ids[start : start + context + 1])
            first_scored.append(scored - start)
            scored = start + len(windows[-1])
    bits = 0.0
    order = sorted(range(len(windows)), key=lambda i: len(windows[i]))  # little padding in a batch
    for batch in (order[i : i + rows] for i in range(0, len(order), rows)):
        longest = max(len(windows[i]) for i in batch)
        ids = torch.full((len(batch), longest), end)
        counted = torch.zeros(len(batch), longest, dtype=torch.bool)
        for row, i in enumerate(batch):
            ids[row, : len(windows[i])] = torch.tensor(windows[i])
            counted[row, first_scored[i] : len(windows[i])] = True
        ids, counted = ids.to(model.device), counted.to(model.device)
        logits = model(input_ids=ids[:, :-1], use_cache=False).logits.float()
        nats = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
        bits += nats[counted[:, 1:].flatten()].double().sum().item() / math.log(2)
    return CrossEntropy(bits, tokens, sum(len(text.encode()) for text in texts))
