"""``python -m docs.record_architectures``: try a tiny random model of every causal architecture of transformers (or of
those that are named; the record keeps its other rows).

Writes docs/bench/architectures.json, from which ``make docs`` makes docs/architectures.md. One works if it writes what
the model of transformers writes without a cache (with its own, some fail), past a sliding window where it has one.
"""

from __future__ import annotations

import json
import signal
import sys
from importlib.metadata import version
from pathlib import Path

import torch
from transformers import CONFIG_MAPPING, MODEL_FOR_MASKED_LM_MAPPING, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils import logging

from lab import EngineConfig, LabError, SamplingParams
from lab.load import new_engine
from lab.models.language_model import LanguageModel
from lab.models.numerical_check import refuse_disagreement
from lab.models.support import refuse_unsupported
from tests import tiny_models
from tests.engine.test_recurrent import KINDS
from tests.engine.test_windows import DECODER_SIZES, GEMMA_3N, GEMMA_4, INDEXED, LATENTS, OWN
from tests.models.test_numerical_check import DECODER, random_model

RECORD = Path(__file__).parent / "bench" / "architectures.json"
TOKENS, WINDOW, SECONDS = 40, 9, 90
MOST = 50_000_000
"""Most parameters of a model that is tried."""
SHAPES = (
    {},
    {"sliding_window": WINDOW},
    {"head_dim": 16},
    {"head_dim": 16, "sliding_window": WINDOW},
    {"sliding_window": WINDOW, "pad_token_id": 0, "bos_token_id": 0},
    {"head_dim": 16, "sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"] * 2},
)
"""Tried in turn: what one architecture cannot do without, another cannot have."""
DECODERS = ("bart", "mbart", "pegasus", "marian", "blenderbot", "blenderbot-small", "bigbird_pegasus", "mvp", "plbart")
HYBRID = {"layer_types": ["linear_attention", "full_attention", "linear_attention"]}
PUBLISHED = {
    **LATENTS,
    **dict.fromkeys(("lfm2", "lfm2_moe", "lfm3"), KINDS["lfm2"]),
    **dict.fromkeys(("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "qwen4_exp_text"), KINDS["qwen3_5_text"]),
    "granitemoehybrid": KINDS["granitemoehybrid"],
    "bamba": KINDS["falcon_h1"] | {"attn_layer_indices": [1]},
    "falcon_h1": KINDS["falcon_h1"],
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "minimax": HYBRID,
    "mamba2": KINDS["mamba2"],
    **dict.fromkeys(("bailing_hybrid", "kimi_linear"), KINDS["kimi_linear"]),
    "gemma3n_text": GEMMA_3N | {"sliding_window": WINDOW},
    "bert-generation": DECODER,
    "xmod": DECODER | {"languages": ["en_XX"], "default_language": "en_XX"},
    "sarvam_mla": LATENTS["glm4_moe_lite"],
    **dict.fromkeys(DECODERS, DECODER_SIZES),
    **dict.fromkeys(("deepseek_v32", "glm_moe_dsa", "hy_v4", "axk2"), INDEXED),
    **dict.fromkeys(("gemma4_text", "gemma4_unified_text"), GEMMA_4 | {"sliding_window": WINDOW}),
    "mimo_v2_flash": OWN["mimo_v2_flash"] | {"sliding_window": WINDOW},
    "llama4_text": {"attention_chunk_size": WINDOW, "head_dim": 16},
    "codegen": {"rotary_dim": 8},
    "gptj": {"rotary_dim": 8},
    "nemotron_h": {"layer_types": ["linear_attention", "moe", "full_attention", "mlp"]},
}
"""In place of these, where the published models have layers that a configuration lacks unless it names them, or where
layers have sizes of their own."""


def outcome(kind: str) -> tuple[str, str]:
    """ "works", "refused", "differs" or "not built", and why."""
    found = ("not built", "")
    shapes = (DECODER,) if CONFIG_MAPPING[kind] in MODEL_FOR_MASKED_LM_MAPPING else SHAPES
    for shape in (PUBLISHED[kind],) if kind in PUBLISHED else shapes:
        try:
            with torch.device("meta"):
                size = sum(weight.numel() for weight in random_model(kind, **shape).parameters())
            if size > MOST:
                return "not built", "its sizes are in parts of its configuration"
            model = random_model(kind, **shape)
        except TimeoutError as error:
            return "not built", str(error)
        except Exception as error:  # each has ways of its own to say that a shape is not one of its own
            if found == ("not built", ""):
                found = "not built", f"{type(error).__name__}: {error}".partition("\n")[0][:120]
            continue
        found = tried(model, kind)
        if found[0] == "works":
            return found
    if found[0] == "not built":
        try:  # one that is refused before it is built need not be
            refuse_unsupported(CONFIG_MAPPING[kind](), kind)
        except LabError as error:
            return "refused", reason(error)
        except Exception:
            pass
    return found


def tried(model: PreTrainedModel, kind: str) -> tuple[str, str]:
    try:
        one = LanguageModel(model, kind)
        refuse_disagreement(one)
        engine = new_engine(one, tiny_models.tokenizer())
        how = SamplingParams(max_tokens=TOKENS, ignore_eos=True)
        run = engine.generate("Once upon a time there was", EngineConfig(paged=True, speculative="early_exit"), how)
    except LabError as error:
        return "refused", reason(error)
    text = torch.tensor([run.prompt_token_ids])
    with one.stock_attention() as stock, torch.inference_mode():
        for _ in range(TOKENS):
            text = torch.cat([text, stock(input_ids=text, use_cache=False).logits[:, -1:].argmax(-1)], dim=1)
    same = run.token_ids == text[0, -TOKENS:].tolist()
    return ("works", "") if same else ("differs", "")


def reason(error: LabError) -> str:
    """The first sentence of a refusal, without the model's name."""
    first = str(error).partition(". ")[0]
    return (first.partition(": ")[2] or first)[:160]


def main() -> None:
    logging.set_verbosity_error()
    rows, named = {}, sys.argv[1:]
    if named:
        rows = {row["kind"]: row for row in json.loads(RECORD.read_text("utf-8"))["rows"]}

    def over(*_: object) -> None:
        raise TimeoutError(f"not built within {SECONDS} s")

    signal.signal(signal.SIGALRM, over)
    for kind, name in sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items()):
        if named and kind not in named:
            continue
        signal.alarm(SECONDS)
        try:
            result, why = outcome(kind)
        except Exception as error:
            result, why = "error", f"{type(error).__name__}: {error}"[:120]
        finally:
            signal.alarm(0)
        rows[kind] = {"kind": kind, "class": name, "result": result, "why": why}
        print(kind, result, why, flush=True)
    found = {"transformers": version("transformers"), "rows": [rows[kind] for kind in sorted(rows)]}
    RECORD.write_text(json.dumps(found, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
