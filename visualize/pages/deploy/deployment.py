"""The Deploy page's inputs: models, the engine's settings, and the machine that is to serve them.

The inputs have the same names as in links to the Lab and the Memory page, so that settings found there carry over.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lab.config import EngineConfig
from lab.memory.model_memory import known_models
from lab.settings import Setting
from lab.vllm.serve_command import TENSOR_PARALLEL
from visualize.memory_inputs import FORM as MEMORY
from visualize.memory_inputs import OTHER, asked
from visualize.run_settings import FORM as LAB
from visualize.run_settings import fields_of
from visualize.url_settings import Form

NAMED = {key: model.name for key, model in known_models().items() if model.hub}
"""Models that a server elsewhere can find by their hub ids, so not this lab's own."""
_MODELS = NAMED | {OTHER: "Another, by its name"}
_NAME = {"default": "", "most_characters": 200, "hide": True}


def _shared(form: Form, name: str, help: str = "", **changes: Any) -> Setting:
    """A setting of the Lab's or the Memory page, with that page's initial value: its links leave out defaults."""
    return replace(form[name], help=help, vllm="", about={}, needs=(), **changes)


FORM = Form(
    (
        Setting("model", "Target", options=_MODELS, default=MEMORY["model"].default, listed=True),
        Setting("hub", "Target's name", "A hub id, or a folder on the server.", **_NAME),
        MEMORY["weights"],
        _shared(LAB, "speculative"),
        Setting("draft_model", "Draft", options=_MODELS, default="llama-3.2-1b", listed=True),
        Setting("draft_hub", "Draft's name", "With the target's own tokenizer.", **_NAME),
        _shared(LAB, "num_speculative_tokens", LAB["num_speculative_tokens"].help),
        _shared(LAB, "kv_dtype"),
        _shared(LAB, "kv_cache_dtype_skip_layers", LAB["kv_cache_dtype_skip_layers"].help),
        _shared(LAB, "enable_prefix_caching", LAB["enable_prefix_caching"].help),
        _shared(LAB, "block_size", options={size: str(size) for size in (1, 4, 8, 16, 32, 64, 128)}),
        MEMORY["gpu"],
        MEMORY["memory"],
        MEMORY["set_aside"],
        Setting(
            "tensor_parallel",
            "GPUs",
            "Every layer is split over them.",
            {0: "Fewest", **{gpus: str(gpus) for gpus in TENSOR_PARALLEL}},
            default=0,
        ),
        Setting(
            "at_once", "Sequences at once", "That the GPUs have to hold.", default=64, bounds=(1, 10_000), step=None
        ),
        MEMORY["mean"],
        _shared(MEMORY, "longest", "Prompt and output."),
        Setting(
            "max_num_batched_tokens",
            "Tokens in a step",
            "Empty: vLLM's choice.",
            default=None,
            bounds=(64, 1_000_000),
            step=None,
            may_be_empty=True,
        ),
        _shared(LAB, "kv_cache", "vLLM always has one."),
        _shared(LAB, "paged", "vLLM always pages."),
        _shared(LAB, "adaptive_window"),
        _shared(LAB, "eviction", listed=True),
    )
)
FOLDED = ("kv_cache", "paged", "adaptive_window", "eviction")
"""What vLLM has no flag for."""


class DeployInputs(FORM.values_class("DeployValues")):
    """The page's controls, with their initial values.

    ``hub``, ``draft_hub``: names of models other than the known ones. ``tensor_parallel`` 0: the fewest GPUs that hold
    ``at_once`` sequences. ``max_num_batched_tokens`` None: vLLM's choice.
    """

    def engine_config(self) -> EngineConfig:
        """The engine's settings as vLLM can have them: there is always a cache, in blocks."""
        return EngineConfig(**fields_of(EngineConfig, self) | {"kv_cache": True, "paged": True})

    def check(self) -> None:
        """Raises ConfigError if a number makes no sense."""
        FORM.check(asked(self))


def from_link(query: Mapping[str, str]) -> tuple[DeployInputs, list[str]]:
    """The inputs a link asks for, and a sentence for each value that was left out."""
    found, notices = FORM.read(query)
    return DeployInputs(**found), notices
