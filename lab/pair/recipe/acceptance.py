"""How many of a draft's proposals the target accepts, on stories that neither has read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lab import EngineConfig, SamplingParams, load_engine
from lab.pair.recipe.text import Split
from lab.trace.events import Judged, Proposed

GAMMA = 4
NEW_TOKENS = 128
PROMPTS = 20
PROMPT_WORDS = 30


@dataclass(frozen=True)
class Acceptance:
    """Counts over whole runs. A round is one draft of up to ``GAMMA`` proposals."""

    rounds: int
    proposed: int
    accepted: int

    @property
    def rate(self) -> float:
        """Share of the proposed tokens that were accepted."""
        return self.accepted / self.proposed

    @property
    def mean_length(self) -> float:
        """Tokens a round yields, the target's own included: 1 + accepted / rounds."""
        return 1 + self.accepted / self.rounds


def story_prompts(split: Split) -> list[str]:
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


def acceptance(target: Path, draft: Path, prompts: list[str], temperature: float, device: str) -> Acceptance:
    """Continue each prompt by ``NEW_TOKENS`` tokens; prompt i is sampled with seed i."""
    engine = load_engine(target=str(target), draft=str(draft), device=device)
    config = EngineConfig(speculative="draft", num_speculative_tokens=GAMMA)
    rounds = proposed = accepted = 0
    for seed, prompt in enumerate(prompts):
        sampling = SamplingParams(max_tokens=NEW_TOKENS, temperature=temperature, seed=seed)
        events = engine.generate(prompt, config, sampling).events
        rounds += len({event.step for event in events if isinstance(event, Proposed)})
        proposed += sum(isinstance(event, Proposed) for event in events)
        accepted += sum(isinstance(event, Judged) and event.accepted for event in events)
    return Acceptance(rounds, proposed, accepted)
