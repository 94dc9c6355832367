"""From token ids to text, one token at a time."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from tokenizers.decoders import DecodeStream
from transformers import PreTrainedTokenizerBase

from lab.errors import PromptError
from lab.util.messages import error_summary


@contextmanager
def tokenizing() -> Iterator[None]:
    """A context in which every failure of a tokenizer is a ``PromptError``. A panic of its Rust code is no
    ``Exception``, and would end the step of all requests."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise PromptError(
            "The model's tokenizer failed at this text. Change the prompt, or choose another model. "
            f"({error_summary(error)})"
        ) from error


class TextStream:
    """The text of a growing list of tokens.

    A character whose bytes span several tokens comes with the last of them. Text that may
    be the beginning of a stop string is held back until that is settled.

    Args:
        context: tokens already there; with some tokenizers a token's text depends on what precedes it.
        stop: the text ends before the first of these strings.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, context: Sequence[int] = (), stop: Sequence[str] = ()
    ) -> None:
        self._tokenizer = tokenizer.backend_tokenizer  # as in its file: transformers may "clean up" spaces besides
        self._stream = DecodeStream(ids=list(context), skip_special_tokens=True)
        self._stop = stop
        self._undecoded: list[int] = []
        self._before = ""
        with tokenizing():
            before = self._decode(context)
        if before.endswith("\N{REPLACEMENT CHARACTER}"):  # apparently half a character: decode it all again
            self._undecoded, self._before = list(context), before
        self._held = ""
        self.stopped = False
        """True once a stop string has come; no text follows it."""

    def push(self, token_id: int) -> str:
        if self.stopped:
            return ""
        self._undecoded.append(token_id)
        with tokenizing():
            piece = self._step(token_id)
        if piece is None:
            return ""
        self._undecoded.clear()
        return self._release(self._held + self._new(piece))

    def flush(self) -> str:
        """The text still held back at the end: half a stop string, half a character."""
        if self.stopped:
            return ""
        tail = ""
        with suppress(PromptError), tokenizing():
            tail = self._decode(self._undecoded)
        self._undecoded.clear()
        text, self._held = self._held + self._new(tail), ""
        return text[: self._end(text)]

    def _step(self, token_id: int) -> str | None:
        try:
            return self._stream.step(self._tokenizer, token_id)
        except Exception as error:
            # With byte fallback (Llama 2's tokenizer) half a character makes the whole ones just before it unreadable,
            # though their text has been returned already. From here on only what follows them is decoded.
            if "prefix" not in str(error):
                raise
        self._stream = DecodeStream(ids=list(self._undecoded), skip_special_tokens=True)
        return self._decode(self._undecoded)

    def _decode(self, token_ids: Sequence[int]) -> str:
        return self._tokenizer.decode(list(token_ids), skip_special_tokens=True)

    def _new(self, text: str) -> str:
        """The part of ``text`` that the context lacked; replacement characters at its end may have become real ones."""
        said, self._before = self._before, ""
        while not text.startswith(said):
            said = said[:-1]
        return text[len(said) :]

    def _release(self, text: str) -> str:
        if (end := self._end(text)) < len(text):
            self.stopped = True
            self._held = ""
            return text[:end]
        hold = max((_overlap(text, stop) for stop in self._stop), default=0)
        cut = len(text) - hold
        self._held = text[cut:]
        return text[:cut]

    def _end(self, text: str) -> int:
        """The index at which the first stop string in ``text`` begins; the length of ``text`` if there is none."""
        return min((at for stop in self._stop if (at := text.find(stop)) >= 0), default=len(text))


def _overlap(text: str, stop: str) -> int:
    """Length of the longest suffix of ``text`` that ``stop`` begins with, short of all of ``stop``."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if stop.startswith(text[-n:])), 0)


def token_text(tokenizer: PreTrainedTokenizerBase, token_id: int) -> str:
    """A token's own text, for display; part of a character is shown as the vocabulary spells it."""
    with tokenizing():
        text = tokenizer.backend_tokenizer.decode([token_id], skip_special_tokens=False)
        spelled = not text or "\N{REPLACEMENT CHARACTER}" in text
        return tokenizer.convert_ids_to_tokens(token_id) or "" if spelled else text
