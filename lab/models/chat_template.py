"""Chats: messages as a model's own template writes them, in the tokens that it was trained on.

A template is a Jinja program beside the tokenizer, which puts control tokens around messages. It knows texts alone: a
control token's name in a user's text would become that token, and an answer that is read back would be encoded anew,
perhaps to other tokens than were generated, whose keys and values are in the cache. So both stand in the rendered text
as private-use characters, and are put in their places among the tokens afterwards.
"""

import functools
import json
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import try_to_load_from_cache
from jinja2 import Environment, TemplateError, meta
from transformers import PreTrainedTokenizerBase

from lab.errors import PromptError
from lab.trace.run import Run
from lab.util.messages import error_summary

ROLES = ("system", "user", "assistant")
SWITCHES = ("enable_thinking", "thinking")
"""What templates call the argument that lets a model think first: Qwen3, GLM and SmolLM3; Granite and DeepSeek."""
MOST_MESSAGES = 200
LONGEST_CHAT = 1_000_000
"""Most characters of all messages together."""
PRIVATE = range(0xF0000, 0xFFFFE)
"""A plane of characters that mean nothing to anybody else."""


@dataclass(frozen=True)
class Chat:
    """A conversation as a prompt: the model writes the answer to its last message.

    Attributes:
        messages: each ``{"role": "system", "user" or "assistant", "content": text}``. An assistant's may have the
            ``token_ids`` that it was generated as (``answer``): they are used where the template writes it as it is.
        thinking: whether the model thinks first, where its template has a switch for that. None: as the template has
            it.

    Raises:
        PromptError: no messages of that form, more than ``MOST_MESSAGES``, or longer than ``LONGEST_CHAT``.
    """

    messages: Sequence[Mapping[str, Any]]
    thinking: bool | None = None

    def __post_init__(self) -> None:
        messages = self.messages
        if not isinstance(messages, Sequence) or isinstance(messages, str) or not all(map(_is_message, messages)):
            raise PromptError(
                "A chat is a list of messages like {'role': 'user', 'content': 'Hello'}. "
                f"Roles are {', '.join(ROLES)}; an assistant's message may have its token_ids."
            )
        if not messages or messages[-1]["role"] != "user":
            raise PromptError("The model answers a user's message. End the chat with one.")
        if len(messages) > MOST_MESSAGES or sum(len(one["content"]) for one in messages) > LONGEST_CHAT:
            raise PromptError(
                f"A chat has at most {MOST_MESSAGES} messages and {LONGEST_CHAT:,} characters. Begin a new one."
            )


def _is_message(given: Any) -> bool:
    if not isinstance(given, Mapping) or given.get("role") not in ROLES or not isinstance(given.get("content"), str):
        return False
    ids = given.get("token_ids", [])
    extra = given.keys() - {"role", "content"}
    return extra <= ({"token_ids"} if given["role"] == "assistant" else set()) and (
        isinstance(ids, list | tuple) and all(type(each) is int and each >= 0 for each in ids)
    )


def answer(run: Run) -> dict[str, Any]:
    """The message of a run's output, for the next ``Chat``. The token that ended it is the template's to write."""
    message = {"role": "assistant", "content": run.text}
    ids = list(run.token_ids)
    if run.reason == "stop" and ids[-1] not in run.sampling.stop_token_ids:
        return message  # the tokens say more than the text, which ends before a stop string
    return message | {"token_ids": ids[:-1] if run.reason in ("eos", "stop") else ids}


class ChatTemplate:
    """The template of the model ``name``. Its methods are not to be called by two threads at once.

    Attributes:
        source: the Jinja program.
        thinking: its argument that switches thinking; None without one.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, name: str) -> None:
        self._tokenizer, self._name = tokenizer, name
        self.source = tokenizer.get_chat_template()
        self.thinking = thinking_switch(self.source)
        added = tokenizer.backend_tokenizer.get_added_tokens_decoder().values()
        names = sorted((token.content for token in added if token.special), key=len, reverse=True)
        self._control = re.compile(f"({'|'.join(map(re.escape, names)) or '(?!)'})")

    def encode(self, chat: Chat) -> list[int]:
        """The tokens of a chat, up to where its answer begins.

        Raises:
            PromptError: the template refuses it, or has no switch for thinking.
        """
        if chat.thinking is not None and not self.thinking:
            raise PromptError(f"The chat template of {self._name} has no switch for thinking. Leave it as it is.")
        contents = [one["content"] for one in chat.messages]
        used = {sign for content in contents for sign in content}
        marks = (chr(code) for code in PRIVATE if chr(code) not in used)
        names = {name: next(marks) for content in contents for name in self._control.findall(content)}
        messages = [
            {"role": one["role"], "content": self._control.sub(lambda found: names[found[0]], one["content"])}
            for one in chat.messages
        ]
        text, answers = self._rendered(messages, chat.thinking), {}
        for index, one in enumerate(chat.messages):
            if self._match(one.get("token_ids"), one["content"]):
                there, mark = messages[index]["content"], next(marks)
                messages[index]["content"] = mark
                marked = self._rendered(messages, chat.thinking)
                if marked.count(mark) == 1 and marked.replace(mark, there) == text:
                    text, answers[mark] = marked, list(one["token_ids"])
                else:  # it was trimmed, or parsed
                    messages[index]["content"] = there
        ids: list[int] = []
        texts = {mark: name for name, mark in names.items()}
        for part in re.split(f"([{''.join(answers)}])", text) if answers else [text]:
            ids += answers[part] if part in answers else self._encoded(part, texts)
        return ids

    def _rendered(self, messages: list[dict[str, str]], thinking: bool | None) -> str:
        switch = {} if thinking is None else {self.thinking: thinking}
        try:  # in transformers' sandbox
            return self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **switch)
        except Exception as error:  # a program from anywhere
            said = str(error) if type(error) is TemplateError else error_summary(error)  # by its own raise_exception
            raise PromptError(
                f"The chat template of {self._name} refuses these messages: {said[:200].rstrip('.')}. Let user and "
                "assistant take turns, without a system message where it takes none."
            ) from error

    def _match(self, ids: Sequence[int] | None, content: str) -> bool:
        """True if an answer's tokens are its text's; one that was edited is encoded anew."""
        if not ids or max(ids) >= len(self._tokenizer):
            return False
        return self._tokenizer.backend_tokenizer.decode(list(ids)).strip() == content.strip()

    def _encoded(self, text: str, names: Mapping[str, str]) -> list[int]:
        """The tokens of rendered text, in which control tokens are those that the template wrote. ``names``: what each
        mark stands for, as text."""
        ids, before = [], ""
        for part in self._control.split(text):
            if names.keys().isdisjoint(part):
                before += part
            else:
                said = "".join(names.get(sign, sign) for sign in part)
                ids += self._tokens(before) + self._tokens(said, split_special_tokens=True)
                before = ""
        return ids + self._tokens(before)

    def _tokens(self, text: str, **how: bool) -> list[int]:
        return self._tokenizer(text, add_special_tokens=False, verbose=False, **how)["input_ids"] if text else []


@functools.lru_cache(maxsize=8)
def thinking_switch(template: str) -> str | None:
    """The name of a template's argument for thinking. None: it has none, or is no template."""
    plain = re.sub(r"\{%-?\s*(end)?generation\s*-?%\}", "", template)  # a tag of transformers', which marks answers
    with suppress(TemplateError):
        read = meta.find_undeclared_variables(Environment(extensions=["jinja2.ext.loopcontrols"]).parse(plain))
        return next((name for name in SWITCHES if name in read), None)
    return None


def template_beside(where: str | Path) -> str | None:
    """The chat template in a model's folder, or in the local cache of a hub id: known before the model is loaded."""
    if written := _text(where, "chat_template.jinja"):
        return written
    with suppress(ValueError, AttributeError, KeyError, TypeError):  # any file may have that name
        found = json.loads(_text(where, "tokenizer_config.json")).get("chat_template")
        if isinstance(found, list):  # several, by name
            found = {one["name"]: one["template"] for one in found}.get("default")
        return found if isinstance(found, str) else None
    return None


def _text(where: str | Path, file: str) -> str:
    with suppress(OSError, ValueError):  # no hub id can be so
        path = os.path.join(where, file) if os.path.isdir(where) else try_to_load_from_cache(str(where), file)
        return Path(path).read_text("utf-8") if isinstance(path, str) else ""
    return ""
