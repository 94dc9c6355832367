"""Quality of an altered cache: INT8 keys and values, and fewer KV heads by a line of configuration."""

import copy
import functools
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging as transformers_logging

from lab.claims.claim import Figures
from lab.claims.trial import Trial, passage
from lab.config import EngineConfig, SamplingParams
from lab.errors import LabError
from lab.measure.difference import common_length
from lab.measure.interval import MIN_SAMPLES
from lab.measure.measuring import finish
from lab.measure.score import divergence, kv_errors, surprise
from lab.measure.workload import PlannedRequest, held_out_prompts
from lab.memory.model_memory import known_models
from lab.models.language_model import LanguageModel


def quality(trial: Trial, **how: int) -> Figures:
    """The quality that INT8 and INT4 keys and values cost, measured once for all claims."""
    return trial.once(loss, **how)


def loss(trial: Trial, *, texts: int, tokens: int) -> Figures:
    """Held-out beginnings, each continued by the target, read with every format; and greedy texts compared."""
    engine = trial.engine("matched")
    prompts = held_out_prompts()[: MIN_SAMPLES if trial.small else texts]
    tokens = 24 if trial.small else tokens
    requests = [
        PlannedRequest(prompt, SamplingParams(max_tokens=tokens, temperature=1.0, seed=i, ignore_eos=True))
        for i, prompt in enumerate(prompts)
    ]
    trial.report("writing texts")
    runs, _ = trial.measure(lambda: finish(engine, requests, EngineConfig(paged=True)))
    windows = [[*run.prompt_token_ids, *run.token_ids] for run in runs]
    trial.report("reading them with each format")
    formats = ("auto", "int8", "int4")
    _, int8, int4 = trial.measure(lambda: kv_errors(engine, windows, lambda line: None, formats))

    same = 0
    for done, prompt in enumerate(prompts, 1):
        trial.begin(f"greedy text {done} of {len(prompts)}", done, len(prompts))
        native, quantised = (
            trial.measure(functools.partial(trial.generate, engine, prompt, config, tokens)).token_ids
            for config in (EngineConfig(), EngineConfig(kv_dtype="int8"))
        )
        same += common_length(native, quantised) == tokens
    rise, int4_rise = (one.perplexity_ratio.map(lambda ratio: ratio - 1) for one in (int8, int4))
    values = {
        "rise": rise.value,
        "high": rise.high,
        "kl": int8.kl.value,
        "off": int8.key_error,
        "same": same,
        "int4_rise": int4_rise.value,
        "int4_high": int4_rise.high,
        "int4_kl": int4.kl.value,
    }
    return Figures(values, words={"tokens": tokens, "texts": len(prompts)})


def _with_heads(model: PreTrainedModel, kv_heads: int, weights: dict[str, torch.Tensor]) -> PreTrainedModel:
    config = copy.deepcopy(model.config)
    config.num_key_value_heads = kv_heads
    made = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", dtype=torch.float32)
    made.load_state_dict(weights)
    return made.eval()


def multi_head(target: LanguageModel) -> PreTrainedModel:
    """A model with the output of ``target`` and a KV head for every query head: shared heads are repeated. Raises
    LabError: keys and values do not come from layers of their own."""
    weights = {name: tensor.cpu().clone() for name, tensor in target.model.state_dict().items()}
    projections = [name for name in weights if name.endswith(("k_proj.weight", "v_proj.weight"))]
    if not projections:
        raise LabError(f"{target.name} has no k_proj and v_proj to write out: this claim needs a Llama-like model.")
    for name in projections:
        heads = weights[name].unflatten(0, (target.kv_heads, target.head_dim))
        weights[name] = heads.repeat_interleave(target.query_groups, 0).flatten(0, 1)
    return _with_heads(target.model, target.kv_heads * target.query_groups, weights)


def pooled(model: PreTrainedModel, kv_heads: int) -> PreTrainedModel:
    """The model with each group of KV heads replaced by its mean (Ainslie et al., 2305.13245, section 2.1)."""
    weights = dict(model.state_dict())
    for name in weights:
        if name.endswith(("k_proj.weight", "v_proj.weight")):
            size = weights[name].shape[0] // model.config.num_key_value_heads
            weights[name] = weights[name].unflatten(0, (kv_heads, -1, size)).mean(1).flatten(0, 1)
    return _with_heads(model, kv_heads, weights)


def fewer_heads(trial: Trial, *, left: int, tokens: int) -> Figures:
    """The embedded target as a multi-head model, loaded with ``left`` KV heads: as it is, forced to, with means."""
    engine = trial.engine("matched")
    ids = torch.tensor(engine.tokenizer(passage(engine, 48 if trial.small else tokens))["input_ids"])

    @torch.inference_mode()
    def log_p(model: PreTrainedModel) -> torch.Tensor:
        return model(ids[None]).logits[0, :-1].double().log_softmax(-1)

    def work() -> Figures:
        trial.report("loading a multi-head model with fewer heads")
        whole = multi_head(engine.target)
        config = copy.deepcopy(whole.config)
        config.num_key_value_heads = left
        # Not from files: Windows deletes none that a model has been loaded from.
        load = functools.partial(
            type(whole).from_pretrained, None, config=config, state_dict=whole.state_dict(), dtype=torch.float32
        )
        with quiet():
            loads = True
            try:
                load()
            except RuntimeError:  # the weights' shapes are not those of the configuration
                loads = False
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                forced, report = load(ignore_mismatched_sizes=True, output_loading_info=True)
        right = log_p(whole)
        kl, perplexity = {}, {}
        for name, model in (("forced", forced.eval()), ("mean", pooled(whole, left)), ("whole", whole)):
            log_q = log_p(model)
            kl[name] = divergence(right, log_q).mean().item()
            perplexity[name] = surprise(log_q, ids[1:]).mean().exp().item()
        heads = whole.config.num_key_value_heads
        return Figures(
            {
                "heads": heads,
                "saving": heads / left,
                "loads": loads,
                "unfit": len(report["mismatched_keys"]),
                "whole": perplexity["whole"],
                "forced": perplexity["forced"],
                "forced_kl": kl["forced"],
                "mean": perplexity["mean"],
                "mean_kl": kl["mean"],
                "seventy": known_models()["llama-2-70b"].shape.kv_heads,
            }
        )

    return trial.measure(work)


@contextmanager
def quiet() -> Iterator[None]:
    """Without transformers' reports of what does not fit: that is what the experiment is about."""
    level = transformers_logging.get_verbosity()
    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity(transformers_logging.CRITICAL)
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(level)
        if bars:
            transformers_logging.enable_progress_bar()
