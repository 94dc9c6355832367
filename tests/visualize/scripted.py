"""A fake engine: events of the real types, made by a script, with no model behind them.

For tests of what is shown. Tokens are words of a fixed text; which draft tokens are
accepted is drawn with a seed; blocks follow the same rules as in the real pool.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict

from lab.config import EngineConfig, SamplingParams
from lab.errors import PromptError
from lab.trace.events import (
    Admitted,
    BlockAllocated,
    BlockFreed,
    Bonus,
    Committed,
    Distributions,
    Event,
    Finished,
    Prefilled,
    Proposed,
    Recovered,
    RunStarted,
    StepTimed,
    Verified,
)
from lab.trace.roofline import Limits

TEXT = (
    "when the old miller died, the eldest took the mill, the second took the ass, and the youngest had "
    "nothing but the cat.\n“What shall I do with a cat?” said he. But the cat heard it all, and spoke, and "
    "said, “Give me a pair of boots and a bag, and you shall see that you are not so badly off as you "
    "think.” So the youngest son went to the cobbler."
)
WORDS = [f" {word}" for word in TEXT.split(" ")]
OTHERS = [" forest", " who", " golden", " never", " and", " king", ",", " castle"]
BYTES_PER_TOKEN = 1000
TARGET_BYTES, DRAFT_BYTES = 50_000_000, 4_000_000
LIMITS = Limits(bytes_per_second=40e9, flops_per_second=100e9)


class ScriptedEngine:
    """Each step takes ``seconds`` of real time; the output is ``words``, over and over."""

    context_length = 1024
    device, dtype, wait_reason, chat_template = "cpu", "float32", "", None

    def __init__(self, seconds: float = 0.0, words: list[str] = WORDS, others: list[str] = OTHERS) -> None:
        self._seconds, self._words, self._others = seconds, words, others

    def default_num_blocks(self, config: EngineConfig) -> int:
        return 8 * self.context_length // config.block_size

    def token_bytes(self, config: EngineConfig) -> int:
        return BYTES_PER_TOKEN // {"auto": 1, "int4": 4, "int4_per_token_head": 4}.get(config.kv_dtype, 2)

    def models(self, config: EngineConfig) -> None:
        """There is nothing to compile."""

    def prepare(self, prompt: str, config: EngineConfig, sampling: SamplingParams) -> None:
        """It refuses nothing."""

    def warm_up(self, config: EngineConfig, *, longest: int) -> None:
        """There are no graphs to capture."""

    def place_in_queue(self, cancelled: threading.Event) -> None:
        """There is always room."""

    def stream(
        self, prompt: str, config: EngineConfig, sampling: SamplingParams, *, cancelled: threading.Event | None = None
    ) -> Iterator[Event]:
        if not prompt:
            raise PromptError("The prompt is empty. Enter some text for the model to continue.")
        return self._run(prompt, config, sampling, cancelled or threading.Event())

    def _run(
        self, prompt: str, config: EngineConfig, sampling: SamplingParams, cancelled: threading.Event
    ) -> Iterator[Event]:
        chance, now, blocks = random.Random(sampling.seed), 0.0, []
        pieces = tuple(word if i == 0 else " " + word for i, word in enumerate(prompt.split(" ")))
        num_blocks = (config.num_blocks or self.default_num_blocks(config)) if config.kv_cache else 0
        yield RunStarted(
            t_ms=0.0,
            prompt=prompt,
            prompt_token_ids=tuple(range(len(pieces))),
            prompt_pieces=pieces,
            config=asdict(config),
            sampling=asdict(sampling) | {"seed": sampling.seed or 1},
            target="stories",
            draft="stories-matched" if config.speculative == "draft" else None,
            device=self.device,
            dtype=self.dtype,
            num_blocks=num_blocks,
            block_bytes=BYTES_PER_TOKEN * config.block_size if config.kv_cache else 0,
            read_bytes_per_second=LIMITS.bytes_per_second,
            flops_per_second=LIMITS.flops_per_second,
            cuda_graphs=False,
            compiled=False,
        )
        yield Admitted(t_ms=0.0, owner=0, running=1, waiting=0, cached_tokens=0, live_blocks=(), cached_blocks=())
        known, made, step, reason = len(pieces), 0, 0, "length"
        while made < sampling.max_tokens:
            if cancelled.is_set():
                reason = "cancelled"
                break
            time.sleep(self._seconds)
            drafted = 0
            if step and config.speculative != "off":
                drafted = min(config.num_speculative_tokens, sampling.max_tokens - made - 1)
            if config.kv_cache:
                end = known + drafted if config.paged else len(pieces) + sampling.max_tokens
                while len(blocks) * config.block_size < end:
                    yield BlockAllocated(t_ms=now, block=len(blocks), owner=0, index=len(blocks), fill=0)
                    blocks.append(len(blocks))
            reserved = len(blocks)  # before the blocks of rejected draft tokens are given back
            parts = {
                "draft_ms": 0.7 * drafted,
                "verify_ms": chance.uniform(4, 6),
                "sample_ms": 0.3,
                "rest_ms": 0.2,
            }
            parts["verify_ms"] += 0.0 if config.kv_cache else 0.1 * known
            now += sum(parts.values())
            if step == 0:
                yield Prefilled(t_ms=now, tokens=known, cached_tokens=0)
            right = [self._words[(made + i) % len(self._words)] for i in range(drafted + 1)]
            kept = next((i for i in range(drafted) if chance.random() > 0.7), drafted)
            q = 0.5 if config.speculative in ("draft", "early_exit") else 1.0
            text_of: list[str] = []
            drawn = not sampling.greedy and config.speculative != "synthetic"
            for i in range(drafted):
                text = right[i] if i < kept else chance.choice(self._others)
                text_of.append(text)
                yield Proposed(t_ms=now, step=step, position=i, token_id=i, text=text, q=q)
            for i in range(min(kept + 1, drafted)):
                good = i < kept
                p, u = (0.4, 0.2) if good else (0.02, 0.9)
                yield Verified(
                    t_ms=now, step=step, position=i, token_id=i, p=p, q=q, u=u if drawn else None, accepted=good
                )
                if count := sampling.logprobs:
                    texts = [right[i], *(self._words[(made + j) % len(self._words)] for j in range(count))]
                    rest = [round(0.5 / 2**j, 4) for j in range(1, count + 2)]
                    yield Distributions(
                        t_ms=now,
                        step=step,
                        position=i,
                        token_ids=(i, *range(100 + i, 101 + i + count)),
                        texts=(text_of[i], *texts),
                        p=(p, *rest),
                        q=None if config.speculative == "synthetic" else (q, *[0.01] * len(rest)),
                        residual=(0.0, *rest) if drawn and not good else None,
                    )
            if drafted:
                own = Bonus if kept == drafted else Recovered
                yield own(t_ms=now, step=step, position=kept, token_id=100 + kept, text=right[kept], p=0.6)
            last = "plain" if not drafted else "bonus" if kept == drafted else "recovered"
            yield Committed(
                t_ms=now,
                step=step,
                token_ids=tuple(range(made, made + kept + 1)),
                origins=(*["accepted"] * kept, last),
                pieces=tuple(right[: kept + 1]),
                probabilities=(*[0.4] * kept, 0.6),
                text="".join(right[: kept + 1]),
            )
            read = known if step == 0 else drafted + 1 if config.kv_cache else known + drafted
            known, made = known + kept + 1, made + kept + 1
            kv_tokens = known - 1 if config.kv_cache else 0
            if config.paged:
                while (len(blocks) - 1) * config.block_size >= kv_tokens:
                    block = blocks.pop()
                    yield BlockFreed(t_ms=now, block=block, owner=0, index=block, fill=0, references=0, cached=False)
            yield StepTimed(
                t_ms=now,
                step=step,
                step_kind="prefill" if step == 0 else "verify" if drafted else "decode",
                target_tokens=read,
                batch_sequences=1,
                batch_tokens=drafted + 1,
                total_ms=sum(parts.values()),
                kv_tokens=kv_tokens,
                kv_reserved_bytes=reserved * config.block_size * BYTES_PER_TOKEN,
                kv_used_bytes=kv_tokens * BYTES_PER_TOKEN,
                memory_bytes=500_000_000,
                draft_bytes=drafted * DRAFT_BYTES,
                draft_flops=drafted * DRAFT_BYTES // 2,
                verify_bytes=TARGET_BYTES,
                verify_flops=read * TARGET_BYTES // 2,
                **parts,
            )
            step += 1
        for block in reversed(blocks):
            fill = min(config.block_size, max(0, known - 1 - block * config.block_size))
            yield BlockFreed(t_ms=now, block=block, owner=0, index=block, fill=fill, references=0, cached=False)
        yield Finished(t_ms=now, reason=reason, text="", message="")
