"""One entry for every setting. Forms, links, the words of a run, options of the command line, the API's parameters
and docs/settings.md (``python -m lab.settings``) are made from these.

To add one: a field of ``EngineConfig`` or ``SamplingParams`` and its default, an entry here, the code that obeys.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from lab.config import BOUNDS, EngineConfig, SamplingParams
from lab.util.messages import listed

ENGINE_DEFAULTS = {one.name: one.default for kind in (EngineConfig, SamplingParams) for one in fields(kind)}
MAX_PROMPT = 4000
"""Most characters of a page's prompt: a link with that many still gets through browsers and proxies."""
MAX_CHAT = 100_000
"""Most characters of a page's conversation, as JSON. A link carries it if it is no longer than a prompt may be."""
MAX_MODEL = 200
"""Most characters of a folder's path or a hub id."""
SEEDS_OF_PAGES = 2**31 - 1
"""The highest seed of a page: what a browser's number field and a C int hold."""


@dataclass(frozen=True)
class Need:
    """A condition on other settings. "gpu" and "zerogpu" count as settings: what the machine has.

    ``what``: a noun phrase, after "needs" or "without".
    """

    what: str
    holds: Callable[..., bool]
    of: tuple[str, ...]


def need(what: str, *of: str, holds: Callable[..., bool] = bool) -> Need:
    return Need(what, holds, of)


CACHE = need("the KV cache (kv_cache)", "kv_cache")
QUANTISED = need("a kv_dtype other than auto", "kv_dtype", holds=lambda form: form != "auto")
PAGED = need("a paged KV cache (paged): only its blocks can be shared", "paged")
PREFIXES = need("prefix caching (enable_prefix_caching)", "enable_prefix_caching")
SPECULATION = need("speculative decoding", "speculative", holds=lambda who: who != "off")
DRAWS = need("a temperature above 0", "temperature")
PROBABILISTIC = need("a drafter with probabilities", "speculative", holds=lambda who: who not in ("off", "synthetic"))
DRAFT_DRAWS = need("a draft that is a model", "speculative", holds=lambda who: who not in ("off", "ngram", "synthetic"))
GPU = need("a GPU that PyTorch can use", "gpu")


def drafter(name: str, what: str) -> Need:
    return need(f"{what} (speculative={name})", "speculative", holds=lambda who: who == name)


@dataclass(frozen=True)
class Setting:
    """One setting of the engine, or of pages only.

    Attributes:
        name: the field of ``EngineConfig`` or ``SamplingParams``; vLLM's name if it has the setting.
        help: one line, for a form, the command line and the API.
        options: words for values. Without ``bounds`` these are all the values there are.
        about: a line for each option, in place of ``help``.
        default: that of the engine's class; of a page's own setting it is given.
        bounds, step: of the page's input, within what the engine accepts. No step: a number field, no slider.
        most_characters, lines, max_lines: of a text.
        vllm: vLLM's name where it is another.
        needs: without one of these the setting has no effect, and a form disables (or ``hide``s) it.
        off: the value that ``without_unusable`` sets where a need is not met.
        group: the fold of the Lab's form. None: the Lab has no input for it.
    """

    name: str
    label: str
    help: str = ""
    options: Mapping[Any, str] = field(default_factory=dict)
    about: Mapping[Any, str] = field(default_factory=dict)
    default: Any = ...
    bounds: tuple[float, float] | None = None
    step: float | None = 1
    most_characters: int = 0
    lines: int = 1
    max_lines: int = 0
    may_be_empty: bool = False
    listed: bool = False
    vllm: str = ""
    needs: Sequence[Need] = ()
    off: Any = None
    hide: bool = False
    group: str | None = ""

    def __post_init__(self) -> None:
        if self.default is ...:
            object.__setattr__(self, "default", ENGINE_DEFAULTS[self.name])

    @property
    def kind(self) -> Literal["switch", "choice", "choices", "number", "text"]:
        if isinstance(self.default, bool):
            return "switch"
        if self.bounds:
            return "number"
        if self.options:
            return "choices" if isinstance(self.default, tuple) else "choice"
        return "text"

    @property
    def whole(self) -> bool:
        return not isinstance(self.default, float)

    @property
    def words(self) -> str:
        return self.label if self.label[1:2].isupper() else self.label[0].lower() + self.label[1:]

    @property
    def title(self) -> str:
        """The label, with the engine's name unless that says the same."""
        same = re.sub(r"[ -]", "_", self.label.lower()) == self.name
        return self.label if same or self.name not in ENGINE_DEFAULTS else f"{self.label} ({self.name})"

    @property
    def doc(self) -> str:
        return f"{self.help} vLLM: {self.vllm}." if self.vllm else self.help

    def value_in_words(self, value: Any) -> str:
        if isinstance(value, bool) and not self.options:
            return "on" if value else "off"
        return str(self.options.get(value, value)) or "none"

    @property
    def range(self) -> str:
        low, high = self.bounds
        return f"a {'whole ' if self.whole else ''}number from {low:,.10g} to {high:,.10g}"


KV_DTYPES = {
    "auto": "Auto",
    "int8": "INT8",
    "int4": "INT4",
    "fp8": "FP8",
    "fp8_per_token_head": "FP8 scaled",
    "int4_per_token_head": "INT4 rotated",
    "turboquant_3bit_nc": "TurboQuant",
}
DRAFTERS = {
    "off": "Off",
    "draft": "Draft",
    "eagle3": "EAGLE-3 head",
    "mtp": "MTP head",
    "dflash": "DFlash head",
    "dspark": "DSpark head",
    "ngram": "N-gram",
    "early_exit": "Early exit",
    "synthetic": "Simulated",
}

NGRAM, EARLY_EXIT = drafter("ngram", "n-gram lookup"), drafter("early_exit", "early exit")
SIMULATED = drafter("synthetic", "simulated drafting")
PRIORITIES = need("eviction=priority", "eviction", holds=lambda how: how == "priority")
CAPTURED = need(
    "the KV cache and custom kernels (kernels=auto), whose steps are captured",
    "kv_cache",
    "kernels",
    holds=lambda kv_cache, kernels: kv_cache and kernels == "auto",
)
OWN_DEVICE = need("a GPU for longer than one run: this Space lends one per run", "zerogpu", holds=lambda lent: not lent)
COMPILABLE = need(
    "PyTorch kernels (kernels=reference): a step in C is compiled already",
    "kernels",
    "gpu",
    holds=lambda kernels, gpu: gpu or kernels == "reference",
)
PROPOSERS = {
    "off": "No speculation: one token per forward pass.",
    "draft": "A small model proposes draft tokens; the target verifies all in one pass.",
    "eagle3": "A small head drafts from the target's own hidden states, token by token.",
    "mtp": "The head in the model's own checkpoint drafts from its hidden states, token by token.",
    "dflash": "A small head drafts from the target's own hidden states, all tokens in one parallel pass.",
    "dspark": "As DFlash, and each token then drawn with regard to the one before.",
    "ngram": "No model: proposes what followed the same tokens earlier in the text.",
    "early_exit": "The first layers draft, all layers verify.",
    "synthetic": "A free drafter, accepted as often as set.",
}
RULES = {
    "standard": "Each by itself: min(1, p / q). Lossless.",
    "block": "The longest block that passes. Lossless.",
    "typical": "Lossy: not the target's distribution.",
}
Q_OF_DRAFTS = {
    "probabilistic": "Draft tokens are drawn from q.",
    "greedy": "Its likeliest: q = 1 (vLLM's default).",
}
RARE_NGRAM = {"bounds": BOUNDS["prompt_lookup_max"], "needs": (NGRAM,), "group": None}
MESSAGE = {"default": "", "most_characters": 2000}
MODEL = {"default": "", "most_characters": MAX_MODEL, "hide": True}
MAY_BE_EMPTY = {"step": None, "may_be_empty": True}
SDPA = {"auto": "Auto", "math": "Math", "efficient": "Efficient", "flash": "Flash"}

ALL = (
    Setting("prompt", "Prompt", "The text to continue.", default="", most_characters=MAX_PROMPT, lines=3),
    Setting("system", "System message", hide=True, lines=2, **MESSAGE),
    Setting("messages", "Messages", "The conversation so far.", hide=True, **MESSAGE | {"most_characters": MAX_CHAT}),
    Setting(
        "thinking", "Thinking", "Before it answers.",
        {"": "Default", "on": "On", "off": "Off"}, default="", hide=True,
    ),
    Setting("kv_cache", "KV cache", "Off: each step recomputes all tokens."),
    Setting(
        "kv_dtype", "KV dtype", "Fewer bits: less memory, more rounding.", KV_DTYPES, needs=(CACHE,), off="auto",
        vllm="kv_cache_dtype",
    ),
    Setting(
        "kv_cache_dtype_skip_layers", "Exempt layers", "Not rounded: like 0 15, or sliding_window.",
        most_characters=200, needs=(CACHE, QUANTISED), hide=True,
    ),
    Setting("paged", "Paged KV cache", "Off: memory for the full length is reserved.", needs=(CACHE,), off=False),
    Setting(
        "enable_prefix_caching", "Prefix caching", "Same beginnings share KV blocks.", needs=(CACHE, PAGED), off=False
    ),
    Setting(
        "speculative", "Speculative decoding", "Who proposes draft tokens.", DRAFTERS, PROPOSERS,
        vllm="speculative_config.method",
    ),
    Setting("pair", "Models", default="matched"),
    Setting("target", "Target model", "A local folder, or a hub id.", **MODEL),
    Setting("draft", "Draft model", "Optional. Must use the same tokenizer.", **MODEL),
    Setting(
        "early_exit_layer", "Early-exit layers", "Layers that draft.", {None: "a quarter"}, bounds=(1, 15),
        needs=(EARLY_EXIT,), hide=True,
    ),
    Setting(
        "synthetic_acceptance_rate", "Acceptance rate", "Share accepted.", bounds=(0, 1), step=0.05,
        needs=(SIMULATED,), hide=True,
    ),
    Setting(
        "num_speculative_tokens", "Draft tokens (γ)", "Proposed per round.", bounds=(1, 8), needs=(SPECULATION,)
    ),
    Setting(
        "num_speculative_tokens_per_batch_size", "γ by batch size", "Like 1-4:4 5-16:2 17-64:0; at most γ.",
        most_characters=200, needs=(SPECULATION,), group=None,
    ),
    Setting("adaptive_window", "Adaptive γ", "γ follows acceptance and cost.", needs=(SPECULATION,)),
    Setting("prompt_lookup_min", "Shortest n-gram", "Fewest tokens that have to match.", **RARE_NGRAM),
    Setting("prompt_lookup_max", "Longest n-gram", "Tokens that are tried to match first.", **RARE_NGRAM),
    Setting(
        "logprobs", "Record distributions", "p and q of draft tokens.", {0: "Off", 5: "Top 5"}, needs=(SPECULATION,)
    ),
    Setting(
        "top_tokens", "Top tokens", "The target's likeliest tokens at each position are recorded.", {0: "none"},
        bounds=BOUNDS["top_tokens"], vllm="logprobs", group=None,
    ),
    Setting(
        "block_size", "Block size", "Tokens per KV block.", {size: str(size) for size in (4, 8, 16, 32, 64)},
        needs=(CACHE,), group="Pool",
    ),
    Setting(
        "num_blocks", "Blocks in the pool",
        "Fewer make memory scarce; empty: two full contexts, or as memory allows.", {None: "as memory allows"},
        bounds=(4, 512), **MAY_BE_EMPTY, vllm="num_gpu_blocks_override", needs=(CACHE,), group="Pool",
    ),
    Setting(
        "eviction", "Eviction", "Which cached prefix makes room for a new block.",
        {"lru": "Least recently used", "priority": "Lowest priority"}, needs=(PREFIXES,), group="Pool",
    ),
    Setting(
        "cache_priority", "Cache priority", "Priority of the prefixes that this request leaves behind.",
        bounds=BOUNDS["cache_priority"], needs=(PREFIXES, PRIORITIES), group="Pool",
    ),
    Setting(
        "temperature", "Temperature", "0: always the likeliest token (greedy).", bounds=(0, 2), step=0.05,
        group="Sampling",
    ),
    Setting(
        "top_k", "Top-k", "Keep the k likeliest tokens; 0 keeps all.", bounds=(0, 1000), needs=(DRAWS,),
        group="Sampling",
    ),
    Setting(
        "top_p", "Top-p", "Keep the likeliest tokens up to this probability; 1 keeps all.", bounds=(0.05, 1),
        step=0.05, needs=(DRAWS,), group="Sampling",
    ),
    Setting(
        "rejection_sample_method", "Verifier", "Which draft tokens are accepted; typical is lossy.",
        {"standard": "Standard", "block": "Block", "typical": "Typical"}, RULES, needs=(PROBABILISTIC, DRAWS),
        group="Sampling",
    ),
    Setting(
        "draft_sample_method", "Draft sampling", "How the draft chooses its tokens.",
        {"probabilistic": "From q", "greedy": "Greedy"}, Q_OF_DRAFTS,
        needs=(DRAFT_DRAWS, DRAWS), group="Sampling",
    ),
    Setting(
        "seed", "Seed", "Fix for reproducible text; leave empty for random.", bounds=(0, SEEDS_OF_PAGES),
        **MAY_BE_EMPTY, group="Sampling",
    ),
    Setting("max_tokens", "Max tokens", "The run ends after this many at most.", bounds=(1, 1000), group="Sampling"),
    Setting("stop", "Stop strings", "The text ends before the first of these.", {(): "none"}, group=None),
    Setting("stop_token_ids", "Stop tokens", "Ids of tokens that end the text.", {(): "none"}, group=None),
    Setting(
        "ignore_eos", "End of text", "Go on past the end-of-text token.", {False: "heeded", True: "ignored"},
        group=None,
    ),
    Setting(
        "parse_special", "Parse special tokens", "In the prompt, the name of a special token is that token, not text.",
        group="Sampling",
    ),
    Setting(
        "raw", "Complete text", "No chat template: the prompt is continued.", default=False, hide=True, group="Sampling"
    ),
    Setting("token_ids", "Prompt is token ids", "Such as 1, 262, taken as they are.", default=False, group="Sampling"),
    Setting(
        "kernels", "Kernels", "Custom: Triton on a GPU, C on a CPU.",
        {"auto": "Custom (Triton / C)", "reference": "PyTorch"}, group="Device",
    ),
    Setting(
        "cuda_graphs", "CUDA graphs", "Off: kernels are launched one by one.", vllm="enforce_eager (its opposite)",
        needs=(GPU, CAPTURED), off=False, group="Device",
    ),
    Setting(
        "torch_compile", "torch.compile", "Layers are compiled; the first run waits for it.",
        vllm="compilation_config", needs=(OWN_DEVICE, COMPILABLE), off=False, group="Device",
    ),
    Setting(
        "prefill_attention", "Prompt attention", "Auto uses the custom kernel; the others use PyTorch SDPA.", SDPA,
        vllm="attention_backend", group="Device",
    ),
)  # fmt: skip
SETTINGS = {one.name: one for one in ALL}
"""Every setting by name, in the order of forms. A setting comes after those that it needs."""


def unmet(values: Mapping[str, Any], settings: Mapping[str, Setting] = SETTINGS) -> dict[str, Need]:
    """The settings among ``values`` that have no effect, each with its first need that is not met. A need of something
    that is not among them counts as met."""
    values, found = dict(values), {}
    for setting in settings.values():
        if setting.name not in values:
            continue
        for need in setting.needs:
            if all(name in values for name in need.of) and not need.holds(*(values[name] for name in need.of)):
                found[setting.name] = need
                if setting.off is not None:
                    values[setting.name] = setting.off
                break
    return found


def without_unused(config: EngineConfig) -> EngineConfig:
    """``config`` with the settings that have no effect at their defaults."""
    return replace(config, **{name: ENGINE_DEFAULTS[name] for name in unmet(vars(config))})


def unused_settings(config: EngineConfig, sampling: SamplingParams) -> list[str]:
    """A sentence per need that is not met, on settings that are not at their defaults and have no effect."""
    values = vars(config) | vars(sampling)
    by_need: dict[str, list[str]] = {}
    for name, need in unmet(values).items():
        if values[name] != ENGINE_DEFAULTS[name]:
            by_need.setdefault(need.what, []).append(name)
    return [
        f"{listed(names)} {'does' if len(names) == 1 else 'do'} nothing without {what}."
        for what, names in by_need.items()
    ]


OLD_NAMES = {
    "cache": "kv_cache",
    "kv_format": "kv_dtype",
    "prefix_caching": "enable_prefix_caching",
    "speculation": "speculative",
    "gamma": "num_speculative_tokens",
    "synthetic_rate": "synthetic_acceptance_rate",
    "pool_blocks": "num_blocks",
    "pool_size": "num_blocks",
    "distributions": "logprobs",
}
"""Settings' names in links from before they had the engine's, and the names now."""


def with_new_names(link: Mapping[str, str]) -> dict[str, str]:
    """``link`` with the settings' names of now. A pool's size was in tokens, and distributions were on or off."""
    given = {name: value for name, value in link.items() if name not in OLD_NAMES}
    for name in sorted(link.keys() & OLD_NAMES.keys()):
        value = link[name]
        if name == "pool_size" and value.isdecimal() and len(value) < 8:
            size = link.get("block_size", "16")
            value = str(int(value) // int(size)) if size in ("4", "8", "16", "32", "64") else value
        if name == "distributions":
            value = {"1": "5"}.get(value, value)
        given.setdefault(OLD_NAMES[name], value)
    return given


def table() -> list[str]:
    rows = []
    for one in (SETTINGS[name] for name in SETTINGS if name in ENGINE_DEFAULTS):
        listed = ", ".join(map(str, one.options)) or "text"
        values = "on, off" if one.kind == "switch" else one.range if one.bounds else listed
        default = one.options.get(one.default, "random") if one.default is None else one.default
        default = one.value_in_words(default) if one.kind == "switch" or default in ((), "") else default
        needs = "; ".join(need.what for need in one.needs)
        cells = (f"`{one.name}`", one.label, values.replace("()", "any"), default, one.help, needs, one.vllm)
        rows.append(f"| {' | '.join(map(str, cells))} |")
    head = ("Name", "Label", "Values", "Default", "", "Needs", "vLLM, where it is called otherwise")
    return [f"| {' | '.join(head)} |", "| --- " * len(head) + "|", *rows]


def markdown() -> str:
    about = "Numbers' ranges are those of the pages; the engine may accept more."
    parts = ("# Settings", "", about, "", "<!-- generated: settings -->", *table(), "<!-- end -->", "")
    return "\n".join(parts)


if __name__ == "__main__":
    print(markdown(), end="")
