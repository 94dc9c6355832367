"""The Deploy page's inputs: models, the engine's settings, and the machine that is to serve them.

The inputs have the same names as in links to the Lab and the Memory page, so that settings found there carry over.
"""

from collections.abc import Mapping

from lab.config import EngineConfig
from lab.memory.model_memory import known_models
from lab.vllm.serve_command import TENSOR_PARALLEL
from visualize.memory_inputs import FORM as MEMORY
from visualize.memory_inputs import OTHER, asked
from visualize.run_settings import FORM as LAB
from visualize.run_settings import fields_of
from visualize.url_settings import form_of

NAMED = {key: model.name for key, model in known_models().items() if model.source.startswith("config.json of ")}
"""Models that a server elsewhere can find by their hub ids, so not this lab's own."""
_MODELS = NAMED | {OTHER: "Another, by its name"}
_GPUS = {0: "Fewest", **{gpus: str(gpus) for gpus in TENSOR_PARALLEL}}
_COMPUTED = {"model": _MODELS, "draft_model": _MODELS, "tensor_parallel": _GPUS}
FORM = form_of("deploy", {name: {"options": options} for name, options in _COMPUTED.items()}, lab=LAB, memory=MEMORY)
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
