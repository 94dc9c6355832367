"""From one text file to token windows: books, held-out split, tokenizer, batches.

The corpus is UTF-8, one paragraph per line, books separated by an empty line.
"""

import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

VOCABULARY = 4096
END_OF_TEXT = "<|endoftext|>"

# Two kinds of text are held out from training: whole books (every 36th), which
# measure how a model does on a book it has never seen, and the last hundredth of
# every other book, which measures how it continues one that it has seen.
UNSEEN_BOOK_STRIDE, UNSEEN_BOOK_START = 36, 2
UNSEEN_ENDING = 0.01


@dataclass(frozen=True)
class CorpusSplit:
    """The corpus, divided. Every field is a list of texts, one per book."""

    train: list[str]
    unseen_endings: list[str]
    unseen_books: list[str]

    @property
    def held_out(self) -> list[str]:
        return self.unseen_endings + self.unseen_books


def unseen_book(index: int) -> bool:
    """True if the book at this index of the corpus is held out as a whole."""
    return index % UNSEEN_BOOK_STRIDE == UNSEEN_BOOK_START


def read_split(path: Path) -> CorpusSplit:
    """Divide the corpus by position alone, so that anyone gets the same split.

    Raises:
        ValueError: the file holds no text.
    """
    books = [book for book in path.read_text("utf-8").split("\n\n") if book.strip()]
    if not books:
        raise ValueError(f"{path} holds no text: one paragraph a line, books separated by an empty line.")
    train, endings, unseen = [], [], []
    for index, book in enumerate(books):
        if unseen_book(index):
            unseen.append(book)
            continue
        cut = book.rfind("\n", 0, int(len(book) * (1 - UNSEEN_ENDING)))  # between two paragraphs
        cut = cut if cut > 0 else len(book)
        train.append(book[:cut])
        endings.append(book[cut:].strip())
    return CorpusSplit(train, [text for text in endings if text], unseen)


def train_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    """A byte-level BPE of 4,096 entries: any bytes can be encoded, nothing is unknown."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator((line for text in texts for line in text.splitlines(keepends=True)), trainer)
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token=END_OF_TEXT, clean_up_tokenization_spaces=False)


def encode(tokenizer: PreTrainedTokenizerFast, texts: list[str]) -> np.ndarray:
    """All texts as one run of ids, each text followed by the end-of-text token. Shape [N], uint16."""
    end = tokenizer.eos_token_id
    ids = [[*encoding.ids, end] for encoding in tokenizer.backend_tokenizer.encode_batch(texts)]
    return np.concatenate([np.asarray(run, dtype=np.uint16) for run in ids])


def batches(tokens: np.ndarray, rows: int, length: int, *, seed: int, skip: int = 0) -> Iterator[torch.Tensor]:
    """Endless batches [rows, length + 1] (int64); each epoch visits every window once,
    except a last few that do not fill a batch.

    Each epoch cuts its windows at a new random offset and shuffles them anew.
    The first ``skip`` batches are skipped without being read: resuming costs nothing.
    """
    windows = (len(tokens) - 1) // length - 1
    if windows < rows:
        raise ValueError(f"{len(tokens)} tokens are too few for {rows} windows of {length}; give more text.")
    a_row = np.arange(length + 1)
    epoch, done = divmod(skip, windows // rows)
    while True:
        rng = np.random.default_rng((seed, epoch))
        offset, order = rng.integers(length), rng.permutation(windows)
        for first in range(done * rows, windows - rows + 1, rows):
            starts = offset + order[first : first + rows] * length
            yield torch.from_numpy(tokens[starts[:, None] + a_row].astype(np.int64))
        epoch, done = epoch + 1, 0


def mixed_batches(
    parts: Sequence[tuple[np.ndarray, float]], rows: int, length: int, *, seed: int, skip: int = 0
) -> Iterator[torch.Tensor]:
    """As ``batches``, but each run of tokens fills its share of the rows of every batch.

    ``parts`` are pairs (tokens, share); shares add up to 1. The running totals are
    rounded, so that the counts add up to ``rows``.
    """
    edges = np.rint(np.cumsum([0.0, *(share for _, share in parts)]) * rows).astype(int)
    streams = [
        batches(tokens, count, length, seed=seed, skip=skip)
        for (tokens, _), count in zip(parts, np.diff(edges).tolist(), strict=True)
        if count
    ]
    while True:
        yield torch.cat([next(stream) for stream in streams])


SKIPPED_FOLDERS = {"test", "tests", "idle_test", "idlelib", "site-packages", "dist-packages", "__pycache__"}


def standard_library(folder: Path | None = None) -> list[str]:
    """The sources below ``folder`` (None: this Python's standard library), one text per file, sorted by path.

    Tests and installed packages are left out, and so are files that are not UTF-8.
    """
    folder = folder or Path(sysconfig.get_paths()["stdlib"])
    texts = []
    for file in sorted(folder.rglob("*.py")):
        if SKIPPED_FOLDERS.isdisjoint(file.relative_to(folder).parts):
            try:
                texts.append(file.read_text("utf-8"))
            except UnicodeDecodeError:
                continue
    return [text for text in texts if text.strip()]
