"""Measures of the trained models: bits per byte, which compares across tokenizers, and a draft's acceptance rate."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn import functional as F
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from lab import EngineConfig, SamplingParams, load_engine
from lab.trace.run import AcceptanceStats, acceptance_stats
from lab.training.corpus import CorpusSplit, encode


@dataclass(frozen=True)
class CrossEntropy:
    """Cross-entropy of some texts: ``bits`` = sum of -log2 p over all their ``tokens``."""

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


GAMMA = 4
NEW_TOKENS = 128
PROMPTS = 20
PROMPT_WORDS = 30


def story_prompts(split: CorpusSplit) -> list[str]:
    """``PROMPTS`` beginnings of held-out paragraphs: half from unseen endings, half from unseen books.

    Of each kind, paragraphs of at least twice ``PROMPT_WORDS`` words qualify; those taken
    are spread evenly among them, each from the middle of its stretch.
    """
    prompts, least = [], 2 * PROMPT_WORDS
    for texts, wanted in ((split.unseen_endings, PROMPTS - PROMPTS // 2), (split.unseen_books, PROMPTS // 2)):
        paragraphs = [line.split() for text in texts for line in text.splitlines()]
        long_enough = [line for line in paragraphs if len(line) >= least]
        if len(long_enough) < wanted:
            raise ValueError(f"{len(long_enough)} held-out paragraphs have {least} words, {wanted} are needed.")
        picks = [int((i + 0.5) * len(long_enough) / wanted) for i in range(wanted)]
        prompts += [" ".join(long_enough[i][:PROMPT_WORDS]) for i in picks]
    return prompts


def measure_acceptance(
    target: Path, draft: Path, prompts: list[str], temperature: float, device: str
) -> AcceptanceStats:
    """Continue each prompt by ``NEW_TOKENS`` tokens, or to an end of text; prompt i is sampled with seed i."""
    engine = load_engine(target=str(target), draft=str(draft), device=device)
    config = EngineConfig(speculative="draft", num_speculative_tokens=GAMMA)
    return acceptance_stats(
        engine.generate(prompt, config, SamplingParams(max_tokens=NEW_TOKENS, temperature=temperature, seed=seed))
        for seed, prompt in enumerate(prompts)
    )
