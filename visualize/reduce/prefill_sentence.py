"""How much of a run's text the target has read, in words: what it found in the cache, prefills, and preemptions."""

from __future__ import annotations

from typing import Any

from lab.trace.events import Admitted, Preempted
from lab.util.messages import counted


class Reading:
    """From the prompt on, through every admission. ``tokens``: of the whole text, which grows."""

    def __init__(self, config: dict[str, Any], prompt_tokens: int) -> None:
        self._config = config
        self._prompt = self.tokens = prompt_tokens
        self._found = self._read = self._admissions = 0
        self._computed = 0  # tokens that were computed before a preemption

    @property
    def grown(self) -> bool:
        """Whether the text has more than the prompt."""
        return self.tokens > self._prompt

    def asked(self) -> str:
        return f"The prompt has {counted(self._prompt, 'token')}. Nothing has been computed yet."

    def admitted(self, event: Admitted) -> str:
        self._found, self._read = event.cached_tokens, event.cached_tokens
        again = "Admitted again. " if self._admissions else ""
        self._admissions += 1
        if self._found:
            blocks = -(-self._found // self._config["block_size"])
            return (
                f"{again}Found {self._found} of {self._whole()} in the cache: "
                f"{counted(blocks, 'block')}, nothing to compute for {'it' if self._found == 1 else 'them'}."
            )
        if again:
            before = f", {self._computed:,} of them again" if self._computed else ""
            return f"{again}All of {self._whole()} {_are(self.tokens)} computed{before}."
        if event.running > 1:
            return f"Admitted: {event.running} sequences share the pool and every pass."
        return self._nothing_found() if self._config["enable_prefix_caching"] else ""

    def _nothing_found(self) -> str:
        size = self._config["block_size"]
        if self._prompt < size:
            fill = "does not fill" if self._prompt == 1 else "do not fill"
            return f"The prompt's {counted(self._prompt, 'token')} {fill} a block of {size}: none of it can be shared."
        if self._prompt == size:
            return (
                f"The prompt fills a block of {size}, which longer prompts can share that begin with it; the same "
                "prompt cannot, as its last token has to be computed."
            )
        return "None of the prompt is in the cache yet."

    def preempted(self, event: Preempted) -> str:
        self._computed = max(self._computed, event.tokens)
        again = counted(event.tokens, "token")
        if self._config["enable_prefix_caching"]:
            again = f"what is no longer cached of its {again}"
        again = f"; {again} will be computed again" if self._config["kv_cache"] else ""
        if event.cause == "blocks":
            return f"Preempted: the pool ran out of blocks, so this run gave its own back and waits{again}."
        return f"Preempted: a step ran out of memory, so fewer runs are computed at once and this one waits{again}."

    def prefill(self, tokens: int) -> str:
        """What a pass over so many tokens of it read."""
        first, self._read = self._read == self._found, self._read + tokens
        if not first or self._read < self.tokens:
            return f"{counted(tokens, 'token')} more, {self._read} of {self._whole()} {_are(self._read)} known"
        if self._found:
            return f"the {counted(tokens, 'token')} that {'was' if tokens == 1 else 'were'} not in the cache"
        return f"{self._whole()} in one pass"

    def _whole(self) -> str:
        """What a prefill has to cover: the prompt and, after a preemption, also the text written so far."""
        return f"the {'text' if self.grown else 'prompt'}'s {counted(self.tokens, 'token')}"


def _are(number: int) -> str:
    return "is" if number == 1 else "are"
