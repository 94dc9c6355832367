"""How many of a draft's proposals the target accepts, on stories that neither has read."""

from __future__ import annotations

from pathlib import Path

from lab import EngineConfig, SamplingParams, load_engine
from lab.trace.acceptance_stats import AcceptanceStats, acceptance_stats
from lab.training.corpus import CorpusSplit

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


def acceptance(target: Path, draft: Path, prompts: list[str], temperature: float, device: str) -> AcceptanceStats:
    """Continue each prompt by ``NEW_TOKENS`` tokens, or to an end of text; prompt i is sampled with seed i."""
    engine = load_engine(target=str(target), draft=str(draft), device=device)
    config = EngineConfig(speculative="draft", num_speculative_tokens=GAMMA)
    return acceptance_stats(
        engine.generate(prompt, config, SamplingParams(max_tokens=NEW_TOKENS, temperature=temperature, seed=seed))
        for seed, prompt in enumerate(prompts)
    )
