"""The Memory page's inputs, and the deployment that they describe."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lab.memory.capacity import MAX_LENGTH, Deployment, Lengths
from lab.memory.catalogue import GPU_KEYS, GPUS, device_bytes
from lab.memory.model_memory import ModelInfo, known_models
from lab.settings import SETTINGS, Setting
from visualize.url_settings import Form

OTHER = "other"
WEIGHTS = {"float32": "FP32", "bfloat16": "BF16", "int8": "INT8", "int4": "INT4"}
"""``Deployment.weights`` in words."""

FORM = Form(
    (
        Setting(
            "model",
            "Model",
            options={key: model.name for key, model in known_models().items()} | {OTHER: "Another, from the hub"},
            default="llama-3.1-8b",
            listed=True,
        ),
        Setting(
            "hub", "Hub id", "Only its config.json is fetched. Press Enter.", default="", most_characters=200, hide=True
        ),
        Setting("weights", "Weights", options=WEIGHTS, default="bfloat16"),
        replace(SETTINGS["kv_dtype"], help="", vllm=""),
        SETTINGS["kv_cache_dtype_skip_layers"],
        Setting(
            "gpu",
            "GPU",
            options={key: name if name.endswith("GB") else f"{name} {GPUS[name]} GB" for key, name in GPU_KEYS.items()}
            | {OTHER: "Another"},
            default="h100-80-gb",
            listed=True,
        ),
        Setting("memory", "Memory, GiB", default=80.0, bounds=(0.1, 100_000), step=None, hide=True),
        Setting("set_aside", "Reserved, %", "For activations, driver.", default=10, bounds=(0, 90)),
        Setting("mean", "Mean length", "Tokens: prompt and output.", default=500, bounds=(1, MAX_LENGTH), step=None),
        Setting("longest", "Longest", "Contiguous reserves it.", default=4096, bounds=(1, MAX_LENGTH), step=None),
        Setting("batch", "Sequences in a batch", default=32, bounds=(1, 1_000_000), step=None),
        replace(SETTINGS["block_size"], help="", options={size: str(size) for size in (1, 8, 16, 32, 128)}),
    )
)


class MemoryInputs(FORM.values_class("MemoryValues")):
    """The page's controls, with their initial values.

    ``hub``: a hub id, if ``model`` is ``OTHER``. ``memory``: GiB, if ``gpu`` is ``OTHER``. ``set_aside``: percent.
    ``mean``, ``longest``: lengths in tokens. ``batch``: sequences whose cache is added up.
    """

    def deployment(self, model: ModelInfo) -> Deployment:
        """Raises ConfigError if a number makes no sense."""
        FORM.check(asked(self))
        return Deployment(
            shape=model.shape,
            parameters=model.parameters,
            state_bytes=model.state_bytes,
            weights=self.weights,
            kv_dtype=self.kv_dtype,
            kv_cache_dtype_skip_layers=self.kv_cache_dtype_skip_layers if self.kv_dtype != "auto" else "",
            memory=gpu_bytes(self.gpu, self.memory),
            set_aside=self.set_aside / 100,
            lengths=Lengths(self.mean, self.longest),
            block_size=self.block_size,
        )


def gpu_bytes(gpu: str, memory: float) -> int:
    """Memory of the GPU that is chosen; the number beside it counts if it is another than those listed."""
    return device_bytes(gpu, memory if gpu == OTHER else None)


def asked(inputs: Any) -> dict[str, Any]:
    """A page's inputs by name, those that it hides at their defaults: nobody could correct them."""
    return vars(inputs) | ({} if inputs.gpu == OTHER else {"memory": FORM["memory"].default})


def from_link(query: Mapping[str, str]) -> tuple[MemoryInputs, list[str]]:
    """The inputs a link asks for, and a sentence for each value that was left out."""
    settings, notices = FORM.read(query)
    return MemoryInputs(**settings), notices
