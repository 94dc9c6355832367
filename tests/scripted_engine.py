"""Engines of a scripted model: it has no weights, and its output changes as soon as one slot of its cache is not what
it should be."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

from lab import EngineConfig, SamplingParams
from lab.engine.engine import Engine
from lab.load import new_engine
from tests.scripted_model import RememberingModel, ScriptedBlockHead, ScriptedHead, ScriptedMarkovHead
from tests.tiny_models import tokenizer

VOCABULARY, WORDS, CONTEXT = 257, 8, 40
LETTERS = tokenizer().decode(list(range(WORDS)))  # the prompts' letters are the words the model knows


def engine(draft: bool = True, **limits: Any) -> Engine:
    models = [RememberingModel(VOCABULARY, WORDS, salt=salt, context_length=CONTEXT) for salt in (0, 1)]
    table = models[0].table[:, :WORDS]
    heads = {"eagle3": ScriptedHead, "mtp": ScriptedHead, "dflash": ScriptedBlockHead, "dspark": ScriptedMarkovHead}
    models[0].heads |= {kind: head(table, VOCABULARY) for kind, head in heads.items()}
    return new_engine(models[0], tokenizer(), models[1] if draft else None, **limits)


ALONE = engine()
PLAIN = EngineConfig(paged=True, block_size=2)


def alone(prompt: str, config: EngineConfig, sampling: SamplingParams) -> list[int]:
    """The same request by itself, in a pool that is large enough, with nothing cached."""
    return _alone(prompt, replace(config, num_blocks=None, enable_prefix_caching=False), sampling)


@functools.cache
def _alone(prompt: str, config: EngineConfig, sampling: SamplingParams) -> list[int]:
    return ALONE.generate(prompt, config, sampling).token_ids
