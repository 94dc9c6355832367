"""The tokenizer beside a model, which reads and writes text as its tokenizer.json says.

transformers builds some tokenizers anew from their class and a vocabulary, and then drops the file's normaliser,
pre-tokenizer or decoder: the model gets other tokens than it was trained on, and nothing says so. What the two make of
a few texts shows it.
"""

import os
from pathlib import Path

from huggingface_hub import try_to_load_from_cache
from tokenizers import Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from lab.errors import UnsupportedModelError
from lab.models.checkpoint_files import FOLDER_CONTENTS, ModelLoadError, hub_refusal, refuse_pointers, tokenizer_files
from lab.models.language_model import LanguageModel
from lab.util.messages import error_summary

TOKENIZER_FILE = "tokenizer.json"
PROBE = (
    "hello",
    " hello",
    "Hello World, don't SHOUT!",
    "x = 3.14159 + 1234567 in 2026",
    "  two  spaces\n\n\tand a tab\r\n ",
    "café naïve ÀÉÎ ﬁ ① cafe\u0301",
    "你好世界。日本語の文 한국어 สวัสดี عربي",
    "🙂👍🏽👩\u200d💻",
    "\x00\x07\x1b\x7f\u00a0\u200b\ufeff\ufffd",
)
"""Texts that tokenizers read differently: spaces, digits, case, composed letters, scripts without spaces, emoji, which
byte fallback spells out, and control characters."""


def load_tokenizer(where: str | Path, *, name: str) -> tuple[PreTrainedTokenizerBase, tuple[str, ...]]:
    """The fast tokenizer beside a model, and a sentence where it is another than transformers makes of its files.

    Raises:
        ModelLoadError: there is none, or none that gives tokens for text.
    """
    files = tokenizer_files(where)
    if os.path.isdir(where) and not files:  # without files transformers may build one with a single token
        raise ModelLoadError(
            f"{name} has no tokenizer: neither {TOKENIZER_FILE} nor tokenizer.model. {FOLDER_CONTENTS}"
        )
    notes: tuple[str, ...] = ()
    try:
        how = {"local_files_only": not os.path.isdir(where) and hub_refusal(str(where)) is not None}
        tokenizer = AutoTokenizer.from_pretrained(where, trust_remote_code=False, **how)
        tokenizer("a")  # some faults only show in use
        if tokenizer.is_fast and (file := _file(where)):
            written = Tokenizer.from_file(file)
            written.no_truncation()
            written.no_padding()
            if (text := _difference(tokenizer.backend_tokenizer, written)) is not None:
                notes = (
                    f"The tokenizer of {name} is what its {TOKENIZER_FILE} says. transformers' "
                    f"{type(tokenizer).__name__} would read {text!r} otherwise.",
                )
                tokenizer = PreTrainedTokenizerFast.from_pretrained(where, **how)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # files from anywhere; a panic in the tokenizer's Rust code is not an Exception
        refuse_pointers(files, name)
        raise ModelLoadError(f"{name} has no tokenizer that can be read. ({error_summary(error)})") from error
    if not tokenizer.is_fast:
        raise ModelLoadError(f"{name} has no fast tokenizer ({TOKENIZER_FILE}), which streaming its text needs.")
    if not any(tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids for text in PROBE):
        raise ModelLoadError(
            f"{name} has a tokenizer that gives no token for text. Its files are incomplete: fetch them again."
        )
    return tokenizer, notes


def _file(where: str | Path) -> str | None:
    """The path of a model's tokenizer.json, of a hub id in the local cache; None if it has none."""
    if os.path.isdir(where):
        path = os.path.join(where, TOKENIZER_FILE)
        return path if os.path.isfile(path) else None
    path = try_to_load_from_cache(str(where), TOKENIZER_FILE)
    return path if isinstance(path, str) else None


def _difference(made: Tokenizer, written: Tokenizer) -> str | None:
    """The first text of the probe that the two read differently, or whose tokens they write differently."""
    for text in PROBE:
        ids = written.encode(text).ids
        said = [one.decode(ids, skip_special_tokens=False) for one in (made, written)]
        if made.encode(text).ids != ids or said[0] != said[1]:
            return text
    return None


def refuse_mismatch(
    target: LanguageModel,
    tokenizer: PreTrainedTokenizerBase,
    draft: LanguageModel,
    draft_tokenizer: PreTrainedTokenizerBase,
) -> None:
    """Raises UnsupportedModelError for a draft whose token ids mean something else than the target's."""
    if draft_tokenizer.get_vocab() != tokenizer.get_vocab():
        raise UnsupportedModelError(
            f"{draft.name} cannot draft for {target.name}: their tokenizers differ "
            f"({len(draft_tokenizer)} and {len(tokenizer)} entries), so its proposals would mean other text. "
            "Choose a draft from the same model family."
        )
