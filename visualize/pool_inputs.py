"""The Pool page's inputs: which sequences arrive and when, the pool they share, and the link that restores them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple
from urllib.parse import urlencode

from lab.config import EngineConfig
from lab.errors import LabError
from lab.measure.workload import PlannedRequest, user_requests
from visualize import run_settings as settings
from visualize.pages.pool.pool_metrics import Asked
from visualize.states import DRAFTERS, KV_FORMATS, SWITCH
from visualize.url_settings import Link

CHOICES: dict[str, dict[Any, str]] = {
    "continuations": {count: str(count) for count in (1, 2, 4, 8)},
    "shared": {0: "None", 1: "All", 4: "Every 4th"},
    "lengths": {"equal": "Equal", "tailed": "Long-tailed", "paragraph": "A paragraph"},
    "block_size": {size: str(size) for size in (4, 8, 16, 32)},
    "eviction": settings.CHOICES["eviction"],
    "kv_dtype": KV_FORMATS,
    "speculative": {name: DRAFTERS[name].label for name in ("off", "draft", "ngram")},
}
"""For each input with a fixed choice of values, the values and what the page calls them."""
WORDS = CHOICES | {"paged": SWITCH, "enable_prefix_caching": SWITCH}
"""The same for all inputs whose values are not their own words."""
COMING = ("sequences", "continuations", "every", "lengths", "tokens", "shared", "system", "temperature", "seed")
"""The inputs that say which sequences arrive."""
BOUNDS: dict[str, tuple[float, float]] = {
    "sequences": (1, 32),
    "every": (0, 32),
    "tokens": (8, 256),
    "num_blocks": (8, 1024),
    "max_num_seqs": (1, 32),
    "temperature": (0, 2),
    "seed": (0, 2**31 - 1),
}
LABELS = {
    "sequences": "Sequences",
    "continuations": "Continuations",
    "every": "Arrivals",
    "lengths": "Output lengths",
    "tokens": "Tokens",
    "shared": "Shared system prompt",
    "system": "System prompt",
    "paged": "Paged blocks",
    "enable_prefix_caching": "Prefix caching",
    "block_size": "Block size",
    "eviction": "Eviction",
    "num_blocks": "Blocks in the pool",
    "max_num_seqs": "Max at once",
    "kv_dtype": "KV format",
    "speculative": "Speculation",
    "temperature": "Temperature",
    "seed": "Seed",
}
IN_CODE = {"num_blocks": LABELS["num_blocks"], "max_tokens": LABELS["tokens"], "block_size": LABELS["block_size"]}
"""What the page calls the settings that the engine's messages name."""
SYSTEM = (
    "These are the tales the old nurse told by the fire on winter nights, when the snow lay before the door and the "
    "children would not go to bed. In each of them somebody poor and kind sets out into the world, is helped by those "
    "whom nobody else would help, and comes home rich and happy; for so, she said, it ought to be, and so it was in "
    "the old days. She told them slowly, and always in the same words, and this is one of them."
)


@dataclass(frozen=True)
class Inputs:
    """The page's controls, with their initial values.

    ``every``: steps between two arrivals; 0: all at once. ``continuations`` of a prompt arrive together. ``lengths``,
    ``tokens``: see ``lab.measure.workload.user_requests``.
    ``shared``: one in so many prompts begins with ``system``; 0: none. The sequences' seeds count up from ``seed``.
    """

    sequences: int = 30
    continuations: int = 1
    every: int = 2
    lengths: str = "tailed"
    tokens: int = 32
    shared: int = 1
    system: str = SYSTEM
    paged: bool = True
    enable_prefix_caching: bool = True
    block_size: int = 16
    eviction: str = settings.DEFAULTS["eviction"]
    num_blocks: int = 192
    max_num_seqs: int = 16
    kv_dtype: str = "auto"
    speculative: str = "off"
    temperature: float = 0.8
    seed: int = 7

    @property
    def beginning(self) -> str:
        """What the prompts begin with that begin alike."""
        return self.system.strip() if self.shared else ""

    def asked(self) -> Asked:
        """The inputs by which runs are compared: one that has no effect beside the others is what it comes to."""
        drawn = self.temperature > 0 or self.lengths == "tailed"
        shared = self.shared if self.beginning else 0
        values = vars(self) | {
            "continuations": min(self.continuations, self.sequences),
            "every": self.every if self.sequences > self.continuations else 0,
            "shared": shared,
            "system": self.beginning,
            "seed": self.seed if drawn else None,
            "eviction": self.eviction if self.enable_prefix_caching and shared > 1 else "lru",
            "max_num_seqs": "all" if self.max_num_seqs >= self.sequences else self.max_num_seqs,
        }
        coming = tuple(values.pop(name) for name in COMING)
        words = {name: str(WORDS.get(name, {}).get(value, value)) for name, value in values.items()}
        return Asked(coming, {LABELS[name]: word for name, word in words.items()})

    def config(self) -> EngineConfig:
        """Raises ConfigError if an input makes no sense."""
        LINK.check(vars(self), LABELS)
        return EngineConfig(
            kv_dtype=self.kv_dtype,
            paged=self.paged,
            block_size=self.block_size,
            num_blocks=self.num_blocks,
            enable_prefix_caching=self.enable_prefix_caching,
            eviction=self.eviction,
            speculative=self.speculative,
        )

    def jobs(self) -> list[PlannedRequest]:
        """Raises PromptError if the system prompt is too long."""
        return user_requests(
            self.sequences,
            self.lengths,
            self.tokens,
            temperature=self.temperature,
            seed=self.seed,
            beginning=settings.bounded(self.beginning),
            of_every=max(1, self.shared),
            continuations=self.continuations,
        )


class Preset(NamedTuple):
    """Something to watch: its label, what to look for, and the inputs that show it."""

    label: str
    about: str
    inputs: Inputs


PRESETS = {
    "users": Preset(
        "Thirty users, one system prompt",
        "The first computes it, the others find its blocks. Then switch prefix caching off.",
        Inputs(),
    ),
    "fits": Preset(
        "Contiguous or paged: what fits?",
        "Contiguous reserves the longest length for each. Then switch paged blocks on.",
        Inputs(
            sequences=24,
            every=0,
            lengths="paragraph",
            tokens=192,
            shared=0,
            paged=False,
            enable_prefix_caching=False,
            num_blocks=64,
            max_num_seqs=24,
        ),
    ),
    "dry": Preset(
        "Too small a pool: preemption",
        "All begin, then the blocks run out: the newest gives its own back and is computed again.",
        Inputs(
            sequences=12,
            every=0,
            lengths="equal",
            tokens=96,
            shared=0,
            enable_prefix_caching=False,
            num_blocks=40,
            max_num_seqs=12,
        ),
    ),
    "forgets": Preset(
        "Evicted: a cache that forgets",
        "Others push the system prompt out before it is used again. Then evict the lowest priority.",
        Inputs(sequences=13, every=8, lengths="equal", tokens=64, shared=4, num_blocks=21, max_num_seqs=2),
    ),
    "part": Preset(
        "Eight endings: copy on write",
        "The prompt's blocks are shared, and the last is copied where they part. Then switch paged blocks off.",
        Inputs(
            sequences=16,
            continuations=8,
            every=24,
            lengths="equal",
            tokens=48,
            shared=0,
            enable_prefix_caching=False,
            num_blocks=80,
        ),
    ),
}
NAMES = tuple(field.name for field in fields(Inputs))
DEFAULTS = {field.name: field.default for field in fields(Inputs)}
LINK = Link(DEFAULTS, CHOICES, BOUNDS, {"system": settings.MAX_PROMPT})


def from_link(query: Mapping[str, str]) -> tuple[Inputs, list[str]]:
    """The inputs a link asks for, and a sentence for each value that was left out."""
    asked, notices = LINK.read(query)
    inputs = Inputs(**asked)
    if inputs.enable_prefix_caching and not inputs.paged:
        if "enable_prefix_caching" in asked:
            notices.append(
                "The link's enable_prefix_caching was left out: it needs paged blocks, only those can be shared."
            )
        inputs = replace(inputs, enable_prefix_caching=False)
    return inputs, notices


def address(inputs: Inputs) -> str:
    """The page's address with these inputs, relative to the other pages."""
    query = _query(vars(inputs), DEFAULTS)
    return f"pool?{query}" if query else "pool"


def in_lab(inputs: Inputs) -> str:
    """The Lab's address, relative to the other pages, where the first of these sequences runs alone with these
    settings. Empty if an input makes no sense: its run says why."""
    try:
        inputs.config()
        first = inputs.jobs()[0]
    except LabError:
        return ""
    values = {name: value for name, value in vars(inputs).items() if name in settings.DEFAULTS.keys() - {"num_blocks"}}
    most = min(first.sampling.max_tokens, int(settings.BOUNDS["max_tokens"][1]))
    return f"./?{_query(values | {'prompt': first.prompt, 'max_tokens': most}, settings.DEFAULTS)}&run=1"


def _query(values: Mapping[str, Any], defaults: Mapping[str, Any]) -> str:
    """A link's query, which leaves out defaults."""
    said = {name: value for name, value in values.items() if value != defaults[name]}
    return urlencode({name: int(value) if isinstance(value, bool) else value for name, value in said.items()})


def to_inputs(values: Sequence[Any]) -> Inputs:
    """What the controls say."""
    return Inputs(**LINK.controls(values))


def preset_of(inputs: Inputs) -> str | None:
    """The preset with exactly these inputs."""
    return next((key for key, preset in PRESETS.items() if preset.inputs == inputs), None)
