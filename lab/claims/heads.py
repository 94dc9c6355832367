"""Fewer KV heads by a line of configuration: the embedded target as a multi-head model, loaded with one KV head."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging as transformers_logging

from lab.claims.claim import TUTORIAL, Claim, Found, Number, Values, Verdict, plain, times
from lab.claims.trial import Trial, passage
from lab.errors import LabError
from lab.measure.score import divergence, surprise
from lab.memory.model_memory import known_models
from lab.models.language_model import LanguageModel

LOST = 0.1
"""Divergence in nats per token that counts as another model."""
LEFT = 1
"""KV heads asked for."""


def multi_head(target: LanguageModel) -> PreTrainedModel:
    """A model with the output of ``target`` and a KV head for every query head: shared heads are repeated.

    Raises:
        LabError: keys and values do not come from layers of their own.
    """
    weights = {name: tensor.cpu().clone() for name, tensor in target.model.state_dict().items()}
    projections = [name for name in weights if name.endswith(("k_proj.weight", "v_proj.weight"))]
    if not projections:
        raise LabError(f"{target.name} has no k_proj and v_proj to write out: this claim needs a Llama-like model.")
    for name in projections:
        heads = weights[name].unflatten(0, (target.kv_heads, target.head_dim))
        weights[name] = heads.repeat_interleave(target.query_groups, 0).flatten(0, 1)
    config = copy.deepcopy(target.model.config)
    config.num_key_value_heads = target.kv_heads * target.query_groups
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", dtype=torch.float32)
    model.load_state_dict(weights)
    return model.eval()


def pooled(model: PreTrainedModel, kv_heads: int) -> PreTrainedModel:
    """The model with each group of KV heads replaced by its mean (Ainslie et al., 2305.13245, section 2.1)."""
    config = copy.deepcopy(model.config)
    weights = dict(model.state_dict())
    for name in weights:
        if name.endswith(("k_proj.weight", "v_proj.weight")):
            heads = weights[name].unflatten(0, (kv_heads, -1, weights[name].shape[0] // config.num_key_value_heads))
            weights[name] = heads.mean(1).flatten(0, 1)
    config.num_key_value_heads = kv_heads
    fewer = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", dtype=torch.float32)
    fewer.load_state_dict(weights)
    return fewer.eval()


def fewer_heads(trial: Trial) -> Found:
    engine = trial.engine("matched")
    ids = torch.tensor(engine.tokenizer(passage(engine, 48 if trial.small else 256))["input_ids"])

    @torch.inference_mode()
    def log_p(model: PreTrainedModel) -> torch.Tensor:
        return model(ids[None]).logits[0, :-1].double().log_softmax(-1)

    def work() -> Found:
        trial.report("loading a multi-head model with fewer heads")
        whole = multi_head(engine.target)
        config = copy.deepcopy(whole.config)
        config.num_key_value_heads = LEFT
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
        for name, model in (("forced", forced.eval()), ("mean", pooled(whole, LEFT)), ("whole", whole)):
            log_q = log_p(model)
            kl[name] = divergence(right, log_q).mean().item()
            perplexity[name] = surprise(log_q, ids[1:]).mean().exp().item()
        seventy = known_models()["llama-2-70b"].shape
        return Found(
            (
                Number("heads", "KV heads of the multi-head model", whole.config.num_key_value_heads),
                Number("saving", f"times smaller with {LEFT}", whole.config.num_key_value_heads / LEFT, "×", "formula"),
                Number("loads", "loads with the changed configuration", loads),
                Number("unfit", "weights that do not fit it", len(report["mismatched_keys"])),
                Number("whole", "perplexity of the original", perplexity["whole"]),
                Number("forced", "forced: with those weights re-initialised", perplexity["forced"]),
                Number("forced_kl", "its divergence from the original", kl["forced"], "nats"),
                Number("mean", "with each group's mean instead", perplexity["mean"]),
                Number("mean_kl", "its divergence", kl["mean"], "nats"),
                Number("seventy", "KV heads of LLaMA-2 70B as published", seventy.kv_heads, "", "formula"),
            )
        )

    return trial.measure(work)


def judge_heads(values: Values) -> Verdict:
    if values["loads"] and values["forced_kl"] < LOST:
        return Verdict("holds", f"It loads and gives the same output, with {times(values['saving'])} less cache.")
    needs = (
        "A model trained with fewer KV heads, or trained on after their means took the place of the many (the GQA "
        f"paper, 2305.13245, takes 5% of the original compute). LLaMA-2 70B has {plain(values['seventy'])} from the "
        "start: setting them changes nothing."
    )
    if values["mean_kl"] < LOST:
        return Verdict("conditions", "With the means of the heads' weights, not by the configuration alone.", needs)
    found = "loads" if values["loads"] else "does not load"
    why = (
        f"A multi-head model {found} so: {plain(values['unfit'])} weights have other shapes. With those "
        f"re-initialised, perplexity goes from {plain(values['whole'])} to {plain(values['forced'])}; with the "
        "heads' means, to "
        f"{plain(values['mean'])}."
    )
    return Verdict("fails", why, needs)


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


CLAIMS = (
    Claim(
        id="kv-heads-8",
        topic="What the KV cache takes",
        quote="config.num_key_value_heads = 8 … 64 → 8 = 8x memory savings on KV cache",
        source=TUTORIAL,
        tested="The embedded target with every shared KV head written out is a multi-head model with the same output. "
        f"Its weights are loaded with num_key_value_heads = {LEFT}: as it is, forced to, and with the means of its "
        "heads.",
        rule=f"Holds if it loads and diverges from the original by less than {LOST:g} nats a token. Under conditions "
        "if it does with the means of the heads' weights.",
        experiment=fewer_heads,
        judge=judge_heads,
    ),
)
