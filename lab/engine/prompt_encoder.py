"""From a prompt (text, token ids or a chat) to what the engine decodes; and from stops to tokens that end a text."""

import threading
from collections.abc import Sequence
from typing import NamedTuple

from transformers import PreTrainedTokenizerBase

from lab.config import SamplingParams
from lab.engine.detokenizer import TextStream, tokenizing
from lab.errors import ConfigError, PromptError
from lab.models.chat_template import Chat, ChatTemplate


class EncodedPrompt(NamedTuple):
    """A prompt's ``text``, which is worked out for one given as ids; ``notes``: sentences about it."""

    text: str
    token_ids: list[int]
    notes: tuple[str, ...] = ()


class PromptEncoder:
    """Encodes prompts for the model ``name`` with ``vocabulary`` tokens. May be called from any thread.

    Attributes:
        special: the names of special tokens by id. They are no text: output leaves them out.
        chat_template: how the model reads messages. None: it has no template.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, name: str, vocabulary: int) -> None:
        self._tokenizer, self._name, self._vocabulary = tokenizer, name, vocabulary
        self._encoding = threading.Lock()  # tokenizers are not thread-safe
        added = tokenizer.backend_tokenizer.get_added_tokens_decoder()
        self.special = {token_id: token.content for token_id, token in added.items() if token.special}
        self.chat_template = ChatTemplate(tokenizer, name) if tokenizer.chat_template else None

    def encode(self, prompt: str | Sequence[int] | Chat, parse_special: bool = False) -> EncodedPrompt:
        """The tokens of a prompt.

        Args:
            prompt: ids are taken as they are; text gets what the tokenizer adds to every text, such as BOS; a chat has
                what its template writes.
            parse_special: the name of a special token in a text is that token; otherwise it is text like any other.
                (llama.cpp's ``parse_special``; transformers' ``split_special_tokens``, its opposite.)

        Raises:
            PromptError: it is empty, no valid text, has a token that the model does not know, or is a chat and the
                model has no template, or one that refuses it.
        """
        if isinstance(prompt, Chat):
            prompt = self._of_chat(prompt)
        if isinstance(prompt, str):
            encoded = self._of_text(prompt, parse_special)
        elif (
            isinstance(prompt, Sequence)
            and not isinstance(prompt, bytes)
            and all(type(each) is int and each >= 0 for each in prompt)
        ):
            encoded = self._of_ids(list(prompt))
        else:
            raise PromptError(
                f"The prompt must be a string, a Chat or a list of token ids, whole numbers from 0, not "
                f"{type(prompt).__name__}."
            )
        if not encoded.token_ids:
            raise PromptError(
                f"The tokenizer of {self._name} gives no token for this prompt. Write other text."
                if prompt
                else "The prompt is empty. Enter some text for the model to continue."
            )
        if (last := max(encoded.token_ids)) >= self._vocabulary:
            with tokenizing():
                spelled = self._tokenizer.convert_ids_to_tokens(last)
            raise PromptError(
                f"The prompt has the token {spelled!r}, number {last:,} of the tokenizer's, and {self._name} "
                f"knows only {self._vocabulary:,}. Leave it out."
            )
        return encoded

    def _of_chat(self, chat: Chat) -> list[int]:
        if self.chat_template is None:
            raise PromptError(
                f"{self._name} has no chat template: it continues text, and answers no messages. Give it a prompt, "
                "or load a model that was tuned for chats."
            )
        for message in chat.messages:
            _refuse_halves(message["content"])
        with self._encoding, tokenizing():
            return self.chat_template.encode(chat)

    def _of_text(self, text: str, parse_special: bool) -> EncodedPrompt:
        _refuse_halves(text)
        how = {"verbose": False, "split_special_tokens": not parse_special}
        with self._encoding, tokenizing():
            ids = self._tokenizer(text, **how)["input_ids"] if text else []
            if len(ids) < 2 or ids[0] != ids[1] or ids[0] not in self.special:
                return EncodedPrompt(text, ids)
            written = self._tokenizer(text, add_special_tokens=False, **how)["input_ids"]
        if len(written) < len(ids):
            note = (
                f"The prompt begins with {self.special[ids[0]]}, which the tokenizer adds by itself: it is there once."
            )
            return EncodedPrompt(text, ids[1:], (note,))
        return EncodedPrompt(text, ids, self._repeated(ids))

    def _of_ids(self, ids: list[int]) -> EncodedPrompt:
        with self._encoding, tokenizing():
            text = self._tokenizer.backend_tokenizer.decode(ids, skip_special_tokens=False)
        return EncodedPrompt(text, ids, self._repeated(ids))

    def _repeated(self, ids: list[int]) -> tuple[str, ...]:
        if len(ids) < 2 or ids[0] != ids[1] or ids[0] not in self.special:
            return ()
        return (f"The prompt begins with {self.special[ids[0]]} twice, as it was given.",)

    def pieces(self, token_ids: list[int]) -> tuple[str, ...]:
        """The text that each token adds; a special one has its name."""
        text = TextStream(self._tokenizer)
        *pieces, last = (text.push(token_id) or self.special.get(token_id, "") for token_id in token_ids)
        return (*pieces, last + text.flush())

    def stops(self, sampling: SamplingParams) -> tuple[frozenset[int], tuple[str, ...]]:
        """The tokens that end a request beside the end of a text, and a sentence on each stop string that no text can
        contain. A stop string that is a special token's name is that token.

        Raises:
            ConfigError: a token that the model does not know.
        """
        names = {name: token_id for token_id, name in self.special.items()}
        found, notes = set(sampling.stop_token_ids), []
        if found and (last := max(found)) >= self._vocabulary:
            raise ConfigError(
                f"stop_token_ids has {last:,}, and {self._name} knows only the ids from 0 to {self._vocabulary - 1:,}."
            )
        for text in sampling.stop:
            if text in names:
                found.add(names[text])
            elif inside := next((name for name in names if name in text), None):
                notes.append(
                    f"The stop string {text!r} cannot match: {inside} in it is a special token, which output leaves "
                    f"out. Name {inside} alone to stop there."
                )
        return frozenset(found), tuple(notes)


def _refuse_halves(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise PromptError(
            f"The prompt is not valid text: it contains half a character (a lone surrogate) at position {error.start}."
        ) from error
