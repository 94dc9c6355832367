"""The settings of the Lab's page: what its form starts with, and what becomes of them in the engine."""

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from lab.config import EngineConfig, SamplingParams, parse_token_ids
from lab.errors import ConfigError, PromptError
from lab.models.chat_template import Chat
from lab.models.devices import has_gpu, prefill_backends
from lab.registry import EMBEDDED, Pair, named_pair
from lab.settings import DRAFTERS, MAX_CHAT, MAX_PROMPT, SETTINGS, Need, Setting, need, unmet
from visualize.options import borrows_a_gpu
from visualize.recorded_results import kv_error, logprobs_cost
from visualize.url_settings import Form

OTHER = "other"
"""The pair whose models are named in fields on the page, where a server accepts any models."""
POOL_TOKENS = 2048
"""Tokens that the pool holds if its blocks are not set: two full contexts of the embedded pair."""
ALWAYS = {"top_tokens": 5}
"""Settings of all runs of the Lab, which has no input for them. Five top tokens cost less than 3% on a CPU."""
STOPS = {"default": "", "options": {}, "most_characters": 1000, "group": "Sampling"}
"""What the Lab has in place of several stops: a text of them."""
OWN_MODELS = need("models of your own", "pair", holds=lambda pair: pair == OTHER)


def _of_lab() -> dict[str, dict[str, Any]]:
    """The Lab's additions to ``lab.settings``, and what it has in place of it."""
    attention = SETTINGS["prefill_attention"]
    here = {name: attention.options[name] for name in ("auto", *prefill_backends())}
    missing = [label for name, label in attention.options.items() if name not in here]
    slower = f" (about {cost.lstrip('+')} slower)" if (cost := logprobs_cost()) else ""
    return {
        "prompt": {
            "default": "Once upon a time there was a poor miller who had three sons, and when he grew old he said,",
            "help": "",
        },
        "kv_dtype": {"about": {name: kv_error(name) for name in SETTINGS["kv_dtype"].options}},
        "paged": {"default": True},
        "speculative": {"default": "draft"},
        "pair": {"options": {name: pair.label for name, pair in EMBEDDED.items()}},
        "target": {"needs": (OWN_MODELS,)},
        "draft": {"needs": (OWN_MODELS,)},
        "early_exit_layer": {"default": 4},
        "logprobs": {"help": f"{SETTINGS['logprobs'].help.rstrip('.')}{slower}."},
        "temperature": {"default": 0.8},
        "seed": {"default": 7},
        "max_tokens": {"default": 160},
        "stop": STOPS | {"lines": 2, "help": "One per line; \\n is a line break."},
        "stop_token_ids": STOPS | {"help": "Ids, such as 0, 2. Special tokens end the text as stop strings, too."},
        "cuda_graphs": {"default": has_gpu()},
        "prefill_attention": {
            "options": here,
            "help": attention.help + (f" Not on this machine: {', '.join(missing)}." if missing else ""),
        },
    }


_CHANGES = _of_lab()
_OF_LAB = (replace(one, **_CHANGES.get(one.name, {})) for one in SETTINGS.values())
FORM = Form(one for one in _OF_LAB if one.group is not None)


class Settings(FORM.values_class("LabValues")):
    """The Lab's settings. ``seed`` None: the engine picks one. ``target`` and ``draft``: folders or hub ids, for the
    ``OTHER`` pair."""

    @property
    def blocks(self) -> int | None:
        """Blocks to give the pool: the number set, or enough for ``POOL_TOKENS``."""
        return (self.num_blocks or POOL_TOKENS // self.block_size) if self.kv_cache else None

    def engine_config(self, num_blocks: int | None = None) -> EngineConfig:
        """Raises ConfigError if a combination makes no sense."""
        graphs = self.cuda_graphs or not has_gpu()  # without one there is nothing to switch off
        return EngineConfig(**fields_of(EngineConfig, self) | {"num_blocks": num_blocks, "cuda_graphs": graphs})

    def sampling(self) -> SamplingParams:
        stops = {"stop": stops_in(self.stop), "stop_token_ids": parse_token_ids(self.stop_token_ids)}
        return SamplingParams(**fields_of(SamplingParams, self) | stops | ALWAYS)

    def asked(self) -> str | list[int]:
        """The prompt as the engine takes it. Raises PromptError and ConfigError: blank, too long, or no token ids."""
        if not self.prompt.strip():
            raise PromptError("The prompt is empty. Enter some text for the model to continue.")
        return as_asked(bounded(self.prompt), self.token_ids)

    @property
    def chats(self) -> bool:
        """True if the prompt is a message to a model that has a chat template."""
        return not (self.raw or self.token_ids)

    def chat(self) -> Chat:
        """The conversation, with the prompt as its last message. Raises PromptError: it is no conversation."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        turns = [{name: it for name, it in one.items() if name != "found"} for one in turns_in(self.messages)]
        asked = {"role": "user", "content": bounded(self.prompt)}
        return Chat([*system, *turns, asked], {"on": True, "off": False}.get(self.thinking))

    def models(self) -> str | Pair:
        """The models to load an engine for. Raises ConfigError if the page's fields name no target, or no draft
        although a draft model is to propose: the engine would say so too, but only once it is loaded."""
        if self.pair != OTHER:
            return self.pair
        pair = named_pair(self.target, self.draft)
        if self.speculative == "draft" and pair.target and not pair.draft:
            draft, off, ngram = (DRAFTERS[name] for name in ("draft", "off", "ngram"))
            raise ConfigError(f"{draft} needs a draft model. Name one with the target, or choose {off} or {ngram}.")
        return pair


def fields_of(kind: type, settings: Any) -> dict[str, Any]:
    """Those of a page's ``settings`` that a dataclass has, too."""
    return {name: value for name, value in vars(settings).items() if name in kind.__dataclass_fields__}


def bounded(prompt: str, most: int = MAX_PROMPT) -> str:
    """``prompt``, checked here because a request need not come from the page, which has this limit too.

    Raises:
        PromptError: it has more than ``most`` characters.
    """
    if len(prompt) > most:
        raise PromptError(f"The prompt has {len(prompt):,} characters; the most is {most:,}.")
    return prompt


def turns_in(text: str) -> list[dict[str, Any]]:
    """The turns in a form's text, which is JSON. Raises PromptError: it is something else."""
    try:
        turns = json.loads(bounded(text, MAX_CHAT)) if text else []
    except (ValueError, RecursionError):
        turns = None
    if not isinstance(turns, list) or not all(isinstance(one, dict) for one in turns):
        raise PromptError("The conversation cannot be read. Begin a new one.")
    return turns


def as_asked(prompt: str, token_ids: bool) -> str | list[int]:
    """A prompt's text or, if they are what it consists of, its ``token_ids``."""
    return parse_token_ids(prompt) if token_ids else prompt


def stops_in(text: str) -> tuple[str, ...]:
    """The stop strings in a form's text: one per line, in which \\n and \\t are written so."""
    lines = filter(None, text.split("\n"))
    return tuple(re.sub(r"\\(.)", lambda sign: {"n": "\n", "t": "\t"}.get(sign[1], sign[1]), line) for line in lines)


def stops_as_text(stops: Iterable[str]) -> str:
    """The text that ``stops_in`` reads so."""
    return "\n".join(stop.replace("\\", "\\\\").replace("\n", "\\n") for stop in stops)


def from_link(
    query: Mapping[str, str], form: Form = FORM, pairs: Mapping[str, Pair] = EMBEDDED, source: str = "link"
) -> tuple[Settings, list[str]]:
    """The settings that a link, or the ``source`` named, asks for, and a sentence for each value that was left out.

    ``pairs``: the model pairs that this server offers; ``form``: one with them. Where the link does not say how to
    draft and its pair has no draft model, n-gram lookup does.
    """
    values, notices = form.read(query, source)
    pair = pairs.get(values.get("pair", FORM["pair"].default))
    if pair and not pair.has_draft:
        values.setdefault("speculative", "ngram")
    for name, missing in unusable(Settings(**values)).items():
        if name in values and values[name] != SETTINGS[name].off:
            notices.append(f"The {source}'s {name} was left out: it needs {missing.what}.")
    for name in ("target", "draft"):
        if values.get(name) and values.get("pair") != OTHER:
            notices.append(f"The {source}'s {name} is not used: that needs pair={OTHER}.")
    return without_unusable(Settings(**values)), notices


def unused(settings: Settings) -> dict[str, Need]:
    """The settings that have no effect on this machine, each with what it needs."""
    machine = {"gpu": has_gpu(), "zerogpu": borrows_a_gpu(os.environ)}
    return unmet(vars(settings) | machine, FORM.settings)


def unusable(settings: Settings) -> dict[str, Need]:
    """Those that the engine would refuse, or that would mislead if they were on."""
    return {name: missing for name, missing in unused(settings).items() if SETTINGS[name].off is not None}


def without_unusable(settings: Settings) -> Settings:
    return replace(settings, **{name: SETTINGS[name].off for name in unusable(settings)})


def with_pairs(form: Form, labels: Mapping[str, str]) -> Form:
    """``form`` with these pairs to choose from: two side by side, more in a list."""
    pair: Setting = replace(form["pair"], options=labels, listed=len(labels) != 2)
    return Form(pair if name == "pair" else one for name, one in form.settings.items())
