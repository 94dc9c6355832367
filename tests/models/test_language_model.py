"""Models that are accepted, with their sizes, and models that are refused, with name and reason."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor
from transformers import (
    AutoModelForCausalLM,
    BartConfig,
    BertConfig,
    LlamaConfig,
    MllamaConfig,
    OpenAIGPTConfig,
    Phi3Config,
    RecurrentGemmaConfig,
)

from lab import EngineConfig, SamplingParams, UnsupportedModelError, load_engine
from lab.backends.interface import NewTokens
from lab.backends.torch.torch_backend import TorchBackend
from lab.kv_cache.attention_metadata import Group, StepPlan
from lab.load import new_engine
from lab.models.language_model import LanguageModel
from lab.models.loader import load_model
from lab.models.quantization import stored_tensors
from lab.models.support import refuse_unsupported
from lab.models.tokenizer import refuse_mismatch
from lab.trace.events import FellBack, Proposed
from tests import tiny_models

TINY = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (RecurrentGemmaConfig(), "recurrent"),
        (BartConfig(vocab_size=50, d_model=16), "encoder-decoder"),
        (BertConfig(**TINY), "encoder"),
        (MllamaConfig(text_config=TINY | {"pad_token_id": 0, "cross_attention_layers": [1]}), "cross-attention"),
        (LlamaConfig(**TINY, num_kv_shared_layers=1), "share the keys and values of others"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.model_type,
)
def test_models_are_refused_by_their_configuration(config, reason):
    with pytest.raises(UnsupportedModelError, match=rf"a/model cannot be decoded here: .*{reason}"):
        refuse_unsupported(config, "a/model")


def test_a_model_that_transformers_gives_no_cache_is_refused():
    gpt = OpenAIGPTConfig(vocab_size=50, n_embd=16, n_layer=1, n_head=2)
    with pytest.raises(UnsupportedModelError, match="no keys and values from token to token"):
        LanguageModel(AutoModelForCausalLM.from_config(gpt), "a/model")


@pytest.mark.parametrize(("window", "full"), [(64, True), (63, False)])
def test_a_window_as_long_as_the_context_is_full_attention(window: int, full: bool) -> None:
    """As in Phi-4-mini, whose window is twice its context. The lab decodes what transformers does with the window."""
    sizes = {"vocab_size": tiny_models.VOCABULARY, "num_key_value_heads": 1, "pad_token_id": 0, "eos_token_id": 256}
    config = Phi3Config(**TINY | sizes, initializer_range=0.3, max_position_embeddings=64, sliding_window=window)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    prompt = tiny_models.tokenizer()("Once upon a time", return_tensors="pt")
    whole = model.generate(**prompt, max_length=64, min_length=64, do_sample=False)[0]
    engine = new_engine(LanguageModel(model, "phi"), tiny_models.tokenizer())
    assert (engine.target.other_attention is None) == full
    run = engine.generate("Once upon a time", EngineConfig(), SamplingParams(max_tokens=48, ignore_eos=True))
    assert run.token_ids == whole[-48:].tolist()


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A target, a good draft, and two models with larger and smaller embedding tables, written by save_pretrained."""
    root = tmp_path_factory.mktemp("models")
    target = tiny_models.random_model("qwen3")
    draft = tiny_models.perturbed(target, 0.02)
    wider = tiny_models.random_model("qwen3", vocab_size=300)
    shorter = copy.deepcopy(draft)
    shorter.resize_token_embeddings(200)
    for name, model in (("target", target), ("draft", draft), ("wider", wider), ("shorter", shorter)):
        model.save_pretrained(root / name)
        tiny_models.tokenizer().save_pretrained(root / name)
    return root


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_models_load_from_folders_and_decode_in_the_dtype(folders, dtype):
    engine = load_engine(folders / "target", folders / "draft", device="cpu", dtype=dtype)
    assert (engine.dtype, engine.target.model.config.model_type) == (dtype, "qwen3")
    assert engine.draft.model is not engine.target.model
    sampling = SamplingParams(max_tokens=8, ignore_eos=True)
    assert engine.generate("Once", EngineConfig(kv_dtype="int8", paged=True, speculative="draft"), sampling).token_ids


@pytest.mark.parametrize(("target", "draft"), [("target", "wider"), ("wider", "target"), ("target", "shorter")])
def test_a_draft_with_another_vocabulary_size_decodes_losslessly(folders, target, draft):
    """As in Qwen2.5: 0.5B and 7B share a tokenizer, but their tables have 151,936 and 152,064 rows."""
    engine = load_engine(folders / target, folders / draft, device="cpu")
    plain, drafted = EngineConfig(), EngineConfig(speculative="draft", num_speculative_tokens=3)
    sampling = SamplingParams(max_tokens=24, temperature=0, ignore_eos=True)
    requests = [engine.submit("Once upon", config, sampling) for config in (plain, drafted)]
    alone, speculated = [request.result() for request in requests]
    assert alone.token_ids == speculated.token_ids
    assert not [event for event in speculated.events if isinstance(event, FellBack)]
    assert draft != "shorter" or max(alone.token_ids) >= 200, "the draft read no token beyond its own table"
    drawn = engine.generate("Once", drafted, SamplingParams(max_tokens=24, seed=3, ignore_eos=True, logprobs=2))
    proposed = [event.token_id for event in drawn.events if isinstance(event, Proposed)]
    widths = {"target": tiny_models.VOCABULARY, "wider": 300, "shorter": 200}
    assert 0 < max(proposed) < min(widths[target], widths[draft])


def test_with_vocabulary_pads_or_cuts_logits_and_clamps_tokens():
    model = LanguageModel(tiny_models.random_model("llama"), "draft")
    own, tokens = tiny_models.VOCABULARY, torch.tensor([3, tiny_models.VOCABULARY - 1])

    def logits(model, tokens):
        with torch.inference_mode():
            return TorchBackend(model).forward([NewTokens(tokens, 0, None, keep=2)], None)

    wide, narrow = model.with_vocabulary(own + 9), model.with_vocabulary(own - 9)
    said, known = logits(wide, torch.tensor([3, own + 5])), logits(model, tokens)
    assert torch.equal(said[:, :own], known)
    assert said.shape == (2, own + 9)
    assert torch.all(said[:, own:] == -torch.inf)
    assert torch.equal(logits(narrow, tokens), known[:, : own - 9])
    for resized in (model, wide, narrow):
        out, rows = torch.empty(2, resized.vocabulary), torch.arange(2)
        plan = StepPlan((Group(slice(0, 2), 1, None),), None, None)
        with torch.inference_mode():
            assert resized.forward(tokens, rows, plan, rows, out) is out
            assert torch.equal(out, resized.forward(tokens, rows, plan, rows))
    assert torch.equal(logits(narrow.with_vocabulary(own), tokens), known)


def test_another_tokenizer_is_refused():
    tokenizer = tiny_models.tokenizer()
    changed = copy.deepcopy(tokenizer)
    changed.add_tokens(["surprise"])
    model = LanguageModel(tiny_models.random_model("llama"), "model")
    with pytest.raises(UnsupportedModelError, match=r"tokenizers differ \(258 and 257 entries\)"):
        refuse_mismatch(model, tokenizer, model, changed)


def test_a_cache_of_another_kind_is_refused_before_weights_are_read(tmp_path):
    RecurrentGemmaConfig(num_hidden_layers=2).save_pretrained(tmp_path)  # no weights at all
    with pytest.raises(UnsupportedModelError, match="recurrent"):
        load_model(tmp_path, name="m", place="cpu", dtype=torch.float32)


@pytest.mark.parametrize("dtype", [torch.bfloat16])
@pytest.mark.parametrize(
    ("architecture", "changes", "unread"),
    [
        ("llama", {}, "model.embed_tokens.weight"),
        ("llama", {"tie_word_embeddings": True}, None),
        ("gpt2", {}, "transformer.wpe.weight"),  # GPT-2's head is its token table; one row of positions is read
    ],
)
def test_a_pass_reads_every_weight_once_and_a_row_of_each_table(architecture, changes, unread, dtype):
    model = tiny_models.random_model(architecture, **changes).to(dtype)
    read = [weight.numel() for name, weight in model.named_parameters() if name != unread]
    assert len(read) + bool(unread) == len(list(model.parameters()))
    wrapped = LanguageModel(model, "m")
    assert wrapped.weight_bytes == sum(read) * dtype.itemsize
    if architecture == "llama":  # an early exit reads only its layers
        layer = sum(weight.nbytes for weight in model.model.layers[1].parameters())
        assert wrapped.first(1).weight_bytes == wrapped.weight_bytes - layer


def test_a_weight_made_of_several_tensors_is_taken_apart_and_its_change_is_noticed():
    numbers, scales = torch.ones(4, 4), torch.ones(4, 4)
    parts = stored_tensors(TwoTensor(numbers, TwoTensor(numbers, scales)))
    assert [id(part) for part in parts] == [id(numbers), id(numbers), id(scales)]
    model = tiny_models.random_model("llama")
    projection = model.model.layers[0].mlp.up_proj
    numbers = projection.weight.detach()
    projection.weight = torch.nn.Parameter(TwoTensor(numbers.clone(), numbers.clone()), requires_grad=False)
    wrapped = LanguageModel(model, "m")
    before = wrapped.identity()
    assert wrapped.identity() == before
    projection.weight.b.add_(1)
    assert wrapped.identity() != before
