"""A model gets the tokens that its tokenizer.json says, whatever class transformers would build for it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import AutoTokenizer

from lab import ModelLoadError, SamplingParams, load_engine
from lab.models import tokenizer as lab_tokenizer
from lab.models.tokenizer import PROBE, load_tokenizer
from tests.models.conftest import refusal
from tests.tiny_models import CONFIGS

SPACE = "▁"


def sentencepiece(*, prepends: bool) -> Tokenizer:
    """As Llama 2's: spaces are ▁, bytes are spelled out, <s> comes first."""
    words = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), SPACE, *"helo", f"{SPACE}h", "he"]
    merges = [(SPACE, "h"), ("h", "e")]
    core = Tokenizer(
        models.BPE({word: i for i, word in enumerate(words)}, merges, byte_fallback=True, unk_token="<unk>")
    )
    begins = [normalizers.Prepend(SPACE)] if prepends else []
    core.normalizer = normalizers.Sequence([*begins, normalizers.Replace(" ", SPACE)])
    ends = [decoders.Strip(" ", 1, 0)] if prepends else []
    core.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *ends])
    core.add_special_tokens(["<unk>", "<s>", "</s>"])
    core.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return core


def byte_level() -> Tokenizer:
    """Every digit for itself, though 12 is a merge: a regular expression of its own splits the text."""
    words = {char: i for i, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    core = Tokenizer(models.BPE(words | {"12": 256}, [("1", "2")]))
    split = pre_tokenizers.Split(Regex(r"\p{N}|[^\s\p{N}]+|\s+"), "isolated")
    bytes_of = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.pre_tokenizer, core.decoder = pre_tokenizers.Sequence([split, bytes_of]), decoders.ByteLevel()
    core.add_special_tokens(["<s>", "</s>"])
    return core


TABLE = {  # tokenizer, the class that its settings name, whether transformers drops something
    "llama, prepends nothing": (sentencepiece(prepends=False), "llama", "LlamaTokenizer", True),
    "llama, leading spaces": (sentencepiece(prepends=True), "llama", "LlamaTokenizer", True),
    "llama, digits by GPT-2's class": (byte_level(), "llama", "GPT2TokenizerFast", True),
    "olmo, digits by GPT-NeoX's class": (byte_level(), "olmo", "GPTNeoXTokenizerFast", True),
    "qwen2, SentencePiece": (sentencepiece(prepends=False), "qwen2", None, True),
    "llama, no class": (sentencepiece(prepends=True), "llama", "PreTrainedTokenizerFast", False),
}


@pytest.fixture
def write(folder) -> Callable[..., Path]:
    def written(core: Tokenizer, kind: str = "llama", of_class: str | None = None) -> Path:
        where = folder(kind) if kind in CONFIGS else folder(model_type=kind)
        core.save(str(where / "tokenizer.json"))
        named = {"tokenizer_class": of_class} if of_class else {}
        settings = named | {"bos_token": "<s>", "eos_token": "</s>", "chat_template": "{{ messages }}"}
        (where / "tokenizer_config.json").write_text(json.dumps(settings), "utf-8")
        return where

    return written


@pytest.mark.parametrize(("core", "kind", "of_class", "drops"), TABLE.values(), ids=TABLE)
def test_text_is_read_and_written_as_the_file_says(write, core, kind, of_class, drops) -> None:
    where = write(core, kind, of_class)
    found, notes = load_tokenizer(where, name="m")
    ids = {text: core.encode(text).ids for text in (*PROBE, "123", " a  b")}
    assert {text: found(text)["input_ids"] for text in ids} == ids
    for some in ids.values():
        assert found.decode(some) == core.decode(some, skip_special_tokens=False)
    assert (found.bos_token, found.eos_token, found.chat_template) == ("<s>", "</s>", "{{ messages }}")
    assert bool(notes) == drops
    changed = AutoTokenizer.from_pretrained(where)
    assert drops == any(changed(text)["input_ids"] != some for text, some in ids.items()), "transformers mended it"


def test_who_runs_the_model_hears_of_it(write) -> None:
    engine = load_engine(write(*TABLE["qwen2, SentencePiece"][:2]), device="cpu", kernels="reference")
    run = engine.generate("z", sampling=SamplingParams(max_tokens=1))
    assert run.prompt_token_ids == [1, engine.tokenizer.convert_tokens_to_ids("<0x7A>")]
    assert any("Qwen2Tokenizer would read" in note for note in run.started.notes)


def test_a_tokenizer_that_gives_no_token_for_text_is_refused(write) -> None:
    core = Tokenizer(models.BPE({"<s>": 0}, []))
    core.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    assert "no token for text" in refusal(write(core, of_class="PreTrainedTokenizerFast"))


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_a_folder_without_a_tokenizer_is_refused(folder, architecture: str) -> None:
    """For some architectures transformers makes up a tokenizer with a single token."""
    where = folder(architecture)
    (where / "tokenizer.json").unlink()
    with pytest.raises(ModelLoadError, match=r"neither tokenizer\.json"):
        load_tokenizer(where, name="m")


def test_a_tokenizer_that_cannot_stream_is_refused_and_an_interrupt_is_no_damage(folder, monkeypatch) -> None:
    where = folder()
    monkeypatch.setattr(lab_tokenizer.AutoTokenizer, "from_pretrained", Mock(return_value=Mock(is_fast=False)))
    with pytest.raises(ModelLoadError, match="no fast tokenizer"):
        load_tokenizer(where, name="m")
    for end in (KeyboardInterrupt, SystemExit):
        monkeypatch.setattr(lab_tokenizer.AutoTokenizer, "from_pretrained", Mock(side_effect=end))
        with pytest.raises(end):
            load_tokenizer(where, name="m")
