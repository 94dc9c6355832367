"""The recipe of the embedded pair, on texts small enough to train on in seconds."""

from __future__ import annotations

import copy
import json
import math
from dataclasses import asdict
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from lab.training import __main__ as stages
from lab.training import distillation
from lab.training.corpus import (
    batches,
    encode,
    mixed_batches,
    read_split,
    train_tokenizer,
    unseen_book,
)
from lab.training.distillation import TEMPERATURE, continuations, distillation_loss, sample_target
from lab.training.model_card import cross_entropy
from lab.training.training import (
    TOKENS_A_STEP,
    TrainingRecord,
    draft_shape,
    export,
    next_token_loss,
    restore,
    train,
)

WORDS = ["the", "a", "king", "queen", "wood", "said", "went", "old", "little", "gold", "and", "to", "of", "in", "was"]


def story(rng: np.random.Generator, paragraphs: int) -> str:
    return "\n".join(" ".join(rng.choice(WORDS, 70)) + "." for _ in range(paragraphs))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    file = tmp_path_factory.mktemp("corpus") / "stories.txt"
    file.write_text("\n\n".join(f"Book {index}.\n{story(rng, 110)}" for index in range(6)), "utf-8")
    return file


@pytest.fixture(scope="module")
def tokenizer(corpus: Path) -> PreTrainedTokenizerFast:
    return train_tokenizer(read_split(corpus).train)


def tiny(vocabulary: int = 300, **changes: int) -> LlamaConfig:
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "head_dim": 16}
    return LlamaConfig(**draft_shape().to_dict() | {"vocab_size": vocabulary} | sizes | changes)


def random_model(seed: int, vocabulary: int = 300, **changes: int) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    return LlamaForCausalLM(tiny(vocabulary, **changes)).eval()


def new_model() -> LlamaForCausalLM:
    return LlamaForCausalLM(tiny())


# Text


def test_the_split_is_by_position_and_keeps_held_out_text_out_of_training(corpus):
    books = corpus.read_text("utf-8").split("\n\n")
    split = read_split(corpus)
    assert split.unseen_books == [book for index, book in enumerate(books) if unseen_book(index)]
    kept = [book for index, book in enumerate(books) if not unseen_book(index)]
    for book, train_text, ending in zip(kept, split.train, split.unseen_endings, strict=True):
        assert train_text + "\n" + ending == book
        assert 0 < len(ending) <= 0.02 * len(book)
    assert [index for index in range(100) if unseen_book(index)] == [2, 38, 74]
    trained_on = "\n".join(split.train)
    assert not any(line in trained_on for text in split.held_out for line in text.splitlines())


@settings(max_examples=40, deadline=None)
@given(st.text())
def test_the_tokenizer_round_trips_any_text(tokenizer, text):
    assert sum(len(token) == 1 for token in tokenizer.get_vocab()) == 256, "every byte has its token"
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(ids) == text


def test_an_epoch_visits_every_window_once():
    tokens, rows, length = np.arange(1000, dtype=np.uint16), 4, 16
    windows = (len(tokens) - 1) // length - 1
    epoch = list(islice(batches(tokens, rows, length, seed=3), windows // rows))
    starts = torch.cat(epoch)[:, 0].tolist()
    assert len(set(starts)) == len(starts) == windows // rows * rows
    assert {start % length for start in starts} == {starts[0] % length}
    assert all((row == torch.arange(row[0], row[0] + length + 1)).all() for row in torch.cat(epoch))


@pytest.mark.parametrize("skip", [1, 14, 15, 16, 47])
def test_skipping_batches_equals_drawing_them(skip):
    parts = [(np.arange(1000, dtype=np.uint16), 0.7), (np.arange(1000, 1400, dtype=np.uint16), 0.3)]
    whole = islice(mixed_batches(parts, 6, 16, seed=1), skip, skip + 5)
    resumed = islice(mixed_batches(parts, 6, 16, seed=1, skip=skip), 5)
    for a, b in zip(whole, resumed, strict=True):
        assert torch.equal(a, b)
        assert (a[:, 0] < 1000).tolist() == [True] * 4 + [False] * 2  # each part fills its share


# Training


RECORD = TrainingRecord(3, 30, 2.0, 1.5, "one machine")


def save_checkpoint(file: Path, **changes: int) -> None:
    torch.save({"model": random_model(0, **changes).state_dict(), "optimizers": [], "record": asdict(RECORD)}, file)


def test_records_add_up_and_a_missing_checkpoint_is_named_with_its_stage(tmp_path):
    both = RECORD.then(TrainingRecord(4, 50, 1.0, 0.5, "another"))
    assert both == TrainingRecord(7, 80, 3.0, 0.5, "one machine, then another")
    save_checkpoint(tmp_path / "draft.pt")
    assert restore(random_model(0), tmp_path / "draft.pt")[1] == RECORD
    for stage in ("target", "sharpened"):
        with pytest.raises(FileNotFoundError, match=f"run --stage {stage} first"):
            restore(random_model(0), tmp_path / f"{stage}.pt")
        assert stage in stages.Recipe.stages


def test_a_resumed_training_ends_where_an_uninterrupted_one_does(tmp_path):
    data = [(np.random.default_rng(0).integers(300, size=80_000).astype(np.uint16), 1.0)]
    options = {"tokens": 3 * TOKENS_A_STEP, "device": "cpu", "compiled": False}

    def stop_after(steps: int):
        calls = iter(range(steps))

        def loss(model, tokens):
            if next(calls, None) is None:
                raise KeyboardInterrupt
            return next_token_loss(model, tokens)

        return loss

    start, still = random_model(6), options | {"tokens": TOKENS_A_STEP, "peak_lr": 0.0}
    same = train(lambda: copy.deepcopy(start), data, next_token_loss, checkpoint=tmp_path / "still.pt", **still)
    assert all(torch.equal(a, b) for a, b in zip(start.parameters(), same.parameters(), strict=True))
    whole = train(new_model, data, next_token_loss, checkpoint=tmp_path / "whole.pt", **options)
    with pytest.raises(KeyboardInterrupt):
        train(new_model, data, stop_after(1), checkpoint=tmp_path / "halves.pt", save_every_s=0, **options)
    assert restore(random_model(0), tmp_path / "halves.pt")[1].steps == 1
    halves = train(new_model, data, next_token_loss, checkpoint=tmp_path / "halves.pt", **options)
    for (name, a), b in zip(whole.state_dict().items(), halves.state_dict().values(), strict=True):
        assert torch.equal(a, b), name

    _, record = restore(random_model(0), tmp_path / "halves.pt")
    assert (record.steps, record.tokens) == (3, 3 * TOKENS_A_STEP)
    assert record.seconds > 0
    assert record.loss == pytest.approx(math.log(300), rel=0.1)

    def refuse(model, tokens):
        raise AssertionError("a complete checkpoint is trained no further")

    train(new_model, data, refuse, checkpoint=tmp_path / "halves.pt", **options)


# Distillation


def test_greedy_continuations_are_those_of_the_whole_forward_pass():
    model = random_model(1, num_attention_heads=4, num_key_value_heads=2, initializer_range=0.5)
    ids = torch.randint(300, (3, 5))
    continued = continuations(model, ids, 12, 0.0)
    for _ in range(12):
        ids = torch.cat([ids, model(ids).logits[:, -1:].argmax(-1)], dim=1)
    assert torch.equal(continued, ids)


def test_samples_continue_training_text_begin_anew_after_an_end_and_resume(tmp_path, monkeypatch):
    monkeypatch.setattr(distillation, "SAMPLE", 64)
    model, tokens = random_model(2), np.arange(1, 300, dtype=np.uint16)
    often = 4.0 * (torch.arange(300) == model.config.eos_token_id)
    model.lm_head.register_forward_hook(lambda module, inputs, logits: logits + often)
    whole = sample_target(model, tokens, count=6, file=tmp_path / "whole.npy", rows=2)
    rows = whole.reshape(6, 64)
    assert (np.diff(rows[:, :8].astype(int)) == 1).all()  # the prompt is a window of the text
    assert (rows[:, -1] == 0).all()
    assert ((rows[:4, :-1] == 0) & (rows[:4, 1:] != 0)).any(1).all()  # at temperature 0.8
    sample_target(model, tokens, count=2, file=tmp_path / "parts.npy", rows=2)
    assert np.array_equal(whole, sample_target(model, tokens, count=6, file=tmp_path / "parts.npy", rows=2))
    assert model.generation_config.eos_token_id == model.config.eos_token_id


@torch.no_grad()
def shared_mass(target: LlamaForCausalLM, draft: LlamaForCausalLM) -> float:
    """Mean of sum_x min(p, q) over text that neither was trained on."""
    tokens = torch.from_numpy(np.random.default_rng(1).integers(300, size=(8, 64)))
    p, q = (torch.softmax(model(tokens).logits / TEMPERATURE, dim=-1) for model in (target, draft))
    return torch.minimum(p, q).sum(-1).mean().item()


@pytest.mark.slow
def test_distillation_raises_the_shared_mass(tmp_path):
    target, tokens = random_model(3, initializer_range=0.1), np.random.default_rng(0).integers(300, size=80_000)
    data = [(tokens.astype(np.uint16), 1.0)]
    before = shared_mass(target, random_model(4))
    options = {"tokens": 40 * 1024, "tokens_a_step": 1024, "peak_lr": 3e-2, "device": "cpu", "compiled": False}
    loss = distillation_loss(target)
    draft = train(new_model, data, loss, checkpoint=tmp_path / "draft.pt", **options)
    assert shared_mass(target, draft) > before + 0.1
    assert shared_mass(target, target) == pytest.approx(1, abs=1e-5)


# What is written


def test_a_uniform_model_costs_the_logarithm_of_its_vocabulary(tokenizer):
    vocabulary = len(tokenizer)
    model = random_model(5, vocabulary)
    torch.nn.init.zeros_(model.lm_head.weight)
    texts = ["Snow fell, é.", "The king said: " + "gold and more gold. " * 400]
    ids = encode(tokenizer, texts)
    result = cross_entropy(model, tokenizer, texts, rows=2)
    assert result.tokens == len(ids) - len(texts)
    assert result.bytes == sum(len(text.encode()) for text in texts)
    assert result.bits_per_byte == pytest.approx(math.log2(vocabulary) * result.tokens / result.bytes, rel=1e-4)
    # Every token of a short text is predicted from all before it.
    model, text = random_model(6, vocabulary, max_position_embeddings=64, initializer_range=0.3), "The old king went."
    ids = torch.tensor([[0, *encode(tokenizer, [text])[:-1].tolist()]])
    with torch.no_grad():
        nats = next_token_loss(model, ids).item()
    assert cross_entropy(model, tokenizer, [text]).nats_per_token == pytest.approx(nats, rel=1e-5)


def test_an_exported_model_loads_and_is_the_same(tokenizer, tmp_path):
    model = random_model(7, len(tokenizer), hidden_size=512, intermediate_size=2048, num_hidden_layers=4)
    folder = tmp_path / "target"
    folder.mkdir()
    (folder / "model-00009-of-00009.safetensors").write_bytes(b"stale")
    expected = {name: value.bfloat16() for name, value in model.state_dict().items()}
    export(model, tokenizer, folder)
    loaded = AutoModelForCausalLM.from_pretrained(folder)
    assert loaded.config.model_type == "llama"
    assert all(torch.equal(expected[name], value) for name, value in loaded.state_dict().items())
    shards = [file.stat().st_size for file in folder.glob("*.safetensors")]
    assert len(shards) > 1
    assert max(shards) < 9e6
    again = AutoTokenizer.from_pretrained(folder)
    assert again.backend_tokenizer.to_str() == tokenizer.backend_tokenizer.to_str()
    assert again.eos_token_id == loaded.generation_config.eos_token_id == 0
    for file in folder.glob("*.json"):
        text = file.read_text("utf-8")
        json.loads(text)
        assert str(tmp_path) not in text
