"""Listed models compared with what transformers builds from their configurations, other models, and refusals."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import httpx
import pytest
import torch
from huggingface_hub.errors import HfHubHTTPError
from torch import nn
from transformers import (
    BertConfig,
    DbrxConfig,
    FalconConfig,
    Gemma2Config,
    GitConfig,
    GPT2Config,
    GPTBigCodeConfig,
    LlamaConfig,
    MambaConfig,
    MllamaConfig,
    Phi3Config,
    PreTrainedConfig,
    PreTrainedModel,
    RobertaConfig,
    T5Config,
)

from lab.errors import UnsupportedModelError
from lab.memory import model_memory as models
from lab.memory.catalogue import PUBLISHED
from lab.memory.model_memory import ModelInfo, count_parameters, find_model, known_models, published_config
from lab.models import checkpoint_files as hub
from lab.models.loader import ModelLoadError
from lab.models.meta_model import parameters, without_weights
from lab.models.model_shape import ModelShape
from lab.models.recurrent_layers import recurrent_layers
from lab.models.support import unsupported_cache
from tests import tiny_models

TINY = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}


def cached(model) -> Counter[tuple[int, int]]:
    """KV heads, and numbers per head and token, of what each layer of a model on "meta" caches. Of the layers of a kind
    the first is computed and the others counted, unless some share what they cache."""
    whole, config = getattr(model.base_model, "layers", []), model.config
    kinds = getattr(config, "layer_types", None) or ["all"] * len(whole)
    computed = 1 + max(map(kinds.index, kinds), default=0)
    if shortened := len(whole) > computed and not getattr(config, "num_kv_shared_layers", 0):
        model.base_model.layers = whole[:computed]
    with torch.device("meta"), torch.no_grad():
        layers = model(input_ids=torch.zeros(1, 3, dtype=torch.int64), use_cache=True).past_key_values.layers
    if shortened:
        model.base_model.layers = whole
        layers = [layers[kinds.index(kind)] for kind in kinds]
    kept = [(layer.keys, layer.values) for layer in layers if layer.keys is not None]
    return Counter((keys.shape[1], keys.shape[3] + values.shape[3]) for keys, values in kept)


def agrees(config: PreTrainedConfig, model: PreTrainedModel) -> tuple[ModelShape, int]:
    """The shape read from a configuration, which has to be what its model caches, with its tables; its parameters."""
    shape, kept = ModelShape.from_config(config), Counter()
    for window, layers in shape.kv_layers.items():
        slot = shape.slot(window)
        kept[slot["kv_heads"], slot["kv_vectors"] * slot["head_dim"]] += layers
    assert cached(model.bfloat16()) == kept
    tables = [part.weight for part in (*model.modules(), model.get_output_embeddings()) if is_table(part, shape)]
    assert shape.tables + shape.layer_table == sum(table.numel() for table in {id(it): it for it in tables}.values())
    return shape, parameters(model)


def is_table(part: nn.Module, shape: ModelShape) -> bool:
    """True for an embedding table of tokens, not of positions, and for the head."""
    return isinstance(part, nn.Embedding | nn.Linear) and len(part.weight) == shape.vocabulary


@pytest.mark.slow
@pytest.mark.parametrize("key", PUBLISHED)
def test_a_listed_model_agrees_with_its_configuration(key: str) -> None:
    config, model = published_config(PUBLISHED[key]["config"]), known_models()[key]
    assert unsupported_cache(config) is None
    empty = without_weights(config)
    recurrent = recurrent_layers(empty)
    assert (parameters(empty), recurrent.state_bytes if recurrent else 0) == (model.parameters, model.state_bytes)
    if not recurrent:
        assert agrees(config, empty) == (model.shape, model.parameters)


SIZES = TINY | {"num_key_value_heads": 1}
LONG = {"sliding_window": 262_144, "max_position_embeddings": 131_072, "pad_token_id": 0}


@pytest.mark.parametrize(
    "config",
    [
        *tiny_models.CONFIGS.values(),
        GPTBigCodeConfig(n_layer=2),
        Phi3Config(**SIZES, **LONG),  # a window as long as all it was made for
        Gemma2Config(**SIZES, head_dim=8, layer_types=["full_attention"] * 2),  # capped scores
        BertConfig(**TINY, is_decoder=True),
    ],
    ids=lambda config: config.model_type,
)
def test_a_model_that_caches_every_position_is_accepted(tmp_path, config) -> None:
    config.save_pretrained(tmp_path)
    found = find_model(tmp_path)
    assert (found.shape, found.parameters) == agrees(config, without_weights(config))


def test_a_folder_needs_a_configuration_and_no_weights(tmp_path) -> None:
    LlamaConfig(**TINY, num_key_value_heads=1, max_position_embeddings=77).save_pretrained(tmp_path / "mine")
    model = find_model(tmp_path / "mine")
    assert model == ModelInfo(
        "mine", model.shape, 2 * 50 * 16 + 2 * (2 * 16**2 + 2 * 16 * 8 + 3 * 16**2 + 32) + 16, model.source
    )
    assert (model.shape.kv_heads, model.shape.head_dim, model.shape.context_length) == (1, 8, 77)


STRANGE = ("../../etc", "/etc", "a/b/c", "", " ", "a b", "x" * 200, "..", "-", "<img src=x onerror=alert(1)>", "a\0b")


def test_an_invalid_hub_id_is_not_looked_up_and_a_folder_not_read(tmp_path, monkeypatch) -> None:
    LlamaConfig(**TINY).save_pretrained(tmp_path / "secret" / "model")
    monkeypatch.chdir(tmp_path)
    for where in STRANGE:
        with pytest.raises(ModelLoadError, match="must be owner/name"):
            find_model(where)
    with pytest.raises(ModelLoadError, match="only the hub is asked"):
        find_model("secret/model")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelLoadError, match="connection"):
        find_model("somebody/some-model")


@pytest.fixture
def asked(monkeypatch) -> Iterator[list[str]]:
    """The paths requested from a hub that answers everything with status 503."""
    asked: list[str] = []

    class Busy(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            asked.append(self.path)
            self.send_error(503)

        def log_message(self, *_) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Busy) as hub:
        threading.Thread(target=hub.serve_forever, args=(0.01,), daemon=True).start()
        address = f"http://127.0.0.1:{hub.server_port}/{{repo_id}}/{{revision}}/{{filename}}"
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", address)
        yield asked
        hub.shutdown()


@pytest.mark.parametrize(
    ("config", "word"),
    [
        (
            MambaConfig(vocab_size=50, hidden_size=16, num_hidden_layers=2),
            r"keeps no keys and values.* a state of 5,120 bytes",
        ),
        (MllamaConfig(text_config=TINY | {"pad_token_id": 0, "cross_attention_layers": [1]}), "cross-attention"),
        (GPT2Config(vocab_size=50, n_embd=16, n_layer=1, n_head=2, add_cross_attention=True), "cross-attention"),
        *((kind(**TINY), "it is an encoder") for kind in (BertConfig, RobertaConfig)),
        (T5Config(vocab_size=50, d_model=16), "encoder-decoder"),
        (DbrxConfig(), "section of its own"),
        (LlamaConfig(**TINY | {"num_hidden_layers": 10**6}), "num_hidden_layers|as layers"),
        (LlamaConfig(**TINY | {"vocab_size": 10**12}), "vocab_size"),
        (LlamaConfig(**TINY, num_kv_shared_layers=1), "share the keys and values of others"),
        (LlamaConfig(**TINY | {"num_attention_heads": 4, "num_key_value_heads": 3}), "share each KV head"),
        # Of these, transformers would make lists of so many.
        ({"model_type": "qwen3", "num_hidden_layers": 10**9}, "num_hidden_layers"),
        ({"model_type": "git", "vision_config": {"model_type": "x", "num_hidden_layers": 10**9}}, "num_hidden_layers"),
        ({"model_type": "phi4_multimodal", "audio_config": {"num_blocks": 10**9}}, "num_blocks"),
        ({"model_type": "llama", "towers": [{"depths": [2, 10**9]}]}, "depths"),
        ({"model_type": "mixtral", "sliding_window": None, "num_local_experts": 10**9}, "num_local_experts"),
    ],
    ids=lambda it: it if isinstance(it, str) else it["model_type"] if isinstance(it, dict) else it.model_type,
)
def test_a_model_whose_memory_would_be_computed_wrong_is_refused(tmp_path, config, word: str) -> None:
    given = config if isinstance(config, dict) else json.loads(config.to_json_string(use_diff=False))
    (tmp_path / "config.json").write_text(json.dumps(given))
    with pytest.raises(UnsupportedModelError, match=word):
        find_model(tmp_path)


@pytest.mark.slow
def test_a_model_that_has_no_end_is_not_built_to_the_end() -> None:
    """Whatever its parts are, and whatever their number is called."""
    config = GitConfig(num_hidden_layers=1, vision_config={"num_hidden_layers": 10**9})
    with pytest.raises(UnsupportedModelError, match="no model has that many parts"):
        count_parameters(config)


@pytest.mark.parametrize("open_to_all", [False, True])
def test_models_refused_by_the_hub_come_from_the_cache_only_for_its_owner(monkeypatch, open_to_all: bool) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise HfHubHTTPError("not yours", response=httpx.Response(401, request=httpx.Request("HEAD", "http://hub")))

    asked = []
    monkeypatch.setattr(hub, "get_hf_file_metadata", refuse)
    kept = models.known_models()["qwen3-8b"].shape
    monkeypatch.setattr(PreTrainedConfig, "get_config_dict", lambda where, **how: asked.append(how) or ({}, {}))
    monkeypatch.setattr(models.AutoConfig, "from_pretrained", lambda where, **how: asked.append(how))
    for name in ("unsupported_cache", "uneven_slots", "experts_per_token"):
        monkeypatch.setattr(models, name, lambda config: None)
    monkeypatch.setattr(models.ModelShape, "from_config", lambda config: kept)
    monkeypatch.setattr(models, "without_weights", lambda config: torch.nn.Module())
    monkeypatch.setattr(models, "packed_parameters", lambda config, parameters: 1)
    if open_to_all:
        with pytest.raises(ModelLoadError, match="did not give the configuration"):
            models.find_model("somebody/private", open_to_all=True)
        assert not asked
    else:
        assert models.find_model("somebody/private").shape == kept
        assert [how["local_files_only"] for how in asked] == [True, True]


@pytest.mark.parametrize(("changes", "kv_heads"), [({}, 1), ({"new_decoder_architecture": True}, 8)])
def test_falcons_newer_architecture_ignores_multi_query(changes: dict, kv_heads: int) -> None:
    """Falcon 40B gives both, and has eight KV heads."""
    sizes = {"num_hidden_layers": 1, "hidden_size": 128, "num_attention_heads": 16, "num_kv_heads": 8}
    config = FalconConfig(**sizes, multi_query=True, **changes)
    assert ModelShape.from_config(config).kv_heads == kv_heads
    weight = without_weights(config).transformer.h[0].self_attention.query_key_value.weight
    assert weight.shape[0] == 128 + 2 * kv_heads * 128 // 16
