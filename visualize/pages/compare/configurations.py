"""The Compare page's inputs: a prompt, the settings to run on it, how and how often; and the link for them."""

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lab.config import EngineConfig, SamplingParams, parse_config
from lab.errors import ConfigError
from lab.measure.comparison import MAX_CONFIGS, MIN_CONFIGS
from lab.models.devices import has_gpu
from lab.registry import EMBEDDED, Pair
from lab.settings import SETTINGS, Setting
from visualize.options import borrows_a_gpu
from visualize.run_settings import FORM as LAB
from visualize.run_settings import fields_of
from visualize.text import visible
from visualize.url_settings import Form

HAS_GPU = has_gpu() and not borrows_a_gpu(os.environ)
"""Whether settings are compared on a GPU: what a ZeroGPU Space lends is for single runs."""


def _draft(gamma: int, **more: Any) -> EngineConfig:
    return EngineConfig(speculative="draft", num_speculative_tokens=gamma, **more)


GAMMAS = (1, 2, 4, 8)
LANES: dict[str, tuple[str, EngineConfig]] = {
    "cache": ("Cache", EngineConfig()),
    "no-cache": ("No cache", EngineConfig(kv_cache=False)),
    "int8": ("INT8", EngineConfig(kv_dtype="int8")),
    "int4": ("INT4", EngineConfig(kv_dtype="int4")),
    "paged": ("Paged", EngineConfig(paged=True)),
    **{f"draft-{gamma}": (f"Draft γ{gamma}", _draft(gamma)) for gamma in GAMMAS},
    "adaptive": ("Draft, adaptive γ", _draft(8, adaptive_window=True)),
    "eagle3": ("EAGLE-3 γ4", EngineConfig(speculative="eagle3")),
    "dflash": ("DFlash γ4", EngineConfig(speculative="dflash")),
    "dspark": ("DSpark γ4", EngineConfig(speculative="dspark")),
    "lookup": ("N-gram γ4", EngineConfig(speculative="ngram")),
    "early-exit": ("Early exit γ4", EngineConfig(speculative="early_exit")),
    "all": ("INT8 paged γ4", _draft(4, kv_dtype="int8", paged=True)),
    "torch": ("PyTorch", EngineConfig(kernels="reference")),
    "compiled": ("torch.compile", EngineConfig(kernels="auto" if HAS_GPU else "reference", torch_compile=True)),
}
"""Settings to choose from, in the order of a comparison: each one's label and engine configuration. The cache alone
comes first, so that a speed-up means what it means in the field."""
if HAS_GPU:
    LANES["no-graphs"] = "No graphs", EngineConfig(cuda_graphs=False)
TRAINED = ("draft", "eagle3", "dflash", "dspark")
NEED_A_DRAFT = frozenset(key for key, (_, config) in LANES.items() if config.speculative in TRAINED)
"""The lanes that take more than a target: a draft model, or a head."""


def presets(*, draft: bool = True) -> dict[str, tuple[str, tuple[str, ...]]]:
    """The comparisons to choose from: each one's label and lanes. ``draft``: whether there is a draft model."""
    found = {
        "ladder": ("Step by step", ("cache", "no-cache", "int8", "paged", "draft-4" if draft else "lookup")),
        "gamma": ("Gamma", ("cache", *(f"draft-{gamma}" for gamma in GAMMAS))),
        "drafters": ("Drafters", ("cache", "draft-4", "eagle3", "dflash", "dspark", "lookup")),
        "formats": ("KV cache", ("cache", "int8", "int4", "paged")),
        "kernels": ("Kernels", tuple(lane for lane in ("cache", "no-graphs", "torch", "compiled") if lane in LANES)),
    }
    return {key: preset for key, preset in found.items() if draft or NEED_A_DRAFT.isdisjoint(preset[1])}


MAX_OWN = 600
"""Most characters of the settings written by hand."""
CARE = {"Quick": 3, "Careful": 9}
"""Modes of measurement: repeats of each setting."""
FORM = Form(
    (
        replace(LAB["prompt"], default="The king's youngest daughter went down to the well, and there she saw"),
        Setting(
            "lanes",
            f"Settings, {MIN_CONFIGS} to {MAX_CONFIGS}",
            "γ: draft tokens per round. The others are compared with the first.",
            {key: label for key, (label, _) in LANES.items()},
            default=presets()["ladder"][1],
        ),
        Setting(
            "own",
            "One setting per line",
            "Like kv_dtype=int8, speculative=ngram; with a name: Mine: paged=true",
            default="",
            most_characters=MAX_OWN,
            lines=2,
            max_lines=4,
        ),
        LAB["pair"],
        Setting("repeats", "Repeats", "Runs of each setting, in changing order.", default=CARE["Quick"], bounds=(1, 9)),
        replace(SETTINGS["max_tokens"], label="Tokens", help="Each run writes this many.", default=96, bounds=(2, 500)),
        SETTINGS["temperature"],
        SETTINGS["top_k"],
        SETTINGS["top_p"],
        replace(SETTINGS["seed"], help="", default=7, may_be_empty=False),
    )
)


class CompareInputs(FORM.values_class("CompareValues")):
    """The page's controls, with their initial values.

    ``lanes``: keys of ``LANES``. ``own``: other settings, one per line (``lab.config``), perhaps after a name
    and a colon.
    """

    def configs(self) -> dict[str, EngineConfig]:
        """The settings by name, in the order of ``LANES`` and then of the lines.

        Raises:
            ConfigError: not two to six settings, an invalid line, or a name that is there twice.
        """
        if len(self.own) > MAX_OWN:
            raise ConfigError(f"Your own settings may have at most {MAX_OWN} characters.")
        configs = {label: config for key, (label, config) in LANES.items() if key in self.lanes}
        for line in filter(None, (line.strip() for line in self.own.splitlines())):
            before, colon, after = line.partition(":")
            given, text = (before, after) if colon and "=" not in before else ("", line)
            name = visible(given.strip() or text.strip() or line)
            try:
                config = parse_config(text)
            except ConfigError as error:
                raise ConfigError(f"Your own settings: {visible(str(error))}") from error
            if name in configs:
                raise ConfigError(f"{name} is listed twice.")
            configs[name] = config
        if not MIN_CONFIGS <= len(configs) <= MAX_CONFIGS:
            raise ConfigError(f"Choose {MIN_CONFIGS} to {MAX_CONFIGS} settings to compare, not {len(configs)}.")
        return configs

    @property
    def asks_the_usual(self) -> bool:
        """Whatever the settings, they decode what the reference machine decoded."""
        mine, usual = vars(self), vars(CompareInputs())
        return all(mine[name] == usual[name] for name in mine if name not in ("lanes", "own", "repeats"))

    def sampling(self) -> SamplingParams:
        """Raises ConfigError if a number makes no sense."""
        FORM.check(vars(self))
        return SamplingParams(**fields_of(SamplingParams, self))


def from_link(
    query: Mapping[str, str], form: Form = FORM, pairs: Mapping[str, Pair] = EMBEDDED
) -> tuple[CompareInputs, list[str]]:
    """The inputs a link asks for, and a sentence for each value that was left out or changed.

    ``pairs``: the model pairs that this server offers; ``form``: one with them. A link that names no lanes gets those
    of the ladder that its pair can run. One from the Lab may ask for as many tokens as a run there has.
    """
    most = FORM["max_tokens"].bounds[1]
    asked = LAB.read({name: query[name] for name in query if name == "max_tokens"})[0].get("max_tokens", most)
    settings, notices = form.read({**query, "max_tokens": most} if asked > most else query)
    if asked > most:
        notices.append(f"A comparison's runs have at most {most} tokens: {most}, not {asked:,}.")
    pair = pairs[settings.get("pair", FORM["pair"].default)]
    settings.setdefault("lanes", presets(draft=pair.has_draft)["ladder"][1])
    return CompareInputs(**settings), notices


def preset_of(lanes: tuple[str, ...], draft: bool = True) -> str | None:
    """The preset with exactly these lanes; ``draft``: see ``presets``."""
    return next((key for key, (_, some) in presets(draft=draft).items() if set(some) == set(lanes)), None)
