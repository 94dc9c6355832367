"""The Pool page's inputs: which sequences arrive and when, the pool they share, and the link that restores them."""

import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from lab.config import EngineConfig, gamma_table
from lab.errors import LabError
from lab.measure.workload import PlannedRequest, user_requests
from lab.settings import DRAFTERS, SETTINGS, Setting, unmet
from visualize.pages.pool.pool_metrics import PoolWorkload
from visualize.run_settings import FORM as LAB
from visualize.run_settings import bounded, fields_of
from visualize.url_settings import Form

SYSTEM = (
    "These are the tales the old nurse told by the fire on winter nights, when the snow lay before the door and the "
    "children would not go to bed. In each of them somebody poor and kind sets out into the world, is helped by those "
    "whom nobody else would help, and comes home rich and happy; for so, she said, it ought to be, and so it was in "
    "the old days. She told them slowly, and always in the same words, and this is one of them."
)

FORM = Form(
    (
        Setting("sequences", "Sequences", default=30, bounds=(1, 32)),
        Setting(
            "continuations",
            "Samples per prompt (n)",
            "If paged, they share the prompt's blocks.",
            {count: str(count) for count in (1, 2, 4, 8)},
            default=1,
        ),
        Setting("every", "Arrivals", "Steps between arrivals; 0: all at once.", default=2, bounds=(0, 32)),
        Setting(
            "lengths",
            "Output lengths",
            "Paragraph: generation stops at the end of the paragraph.",
            {"equal": "Equal", "tailed": "Long-tailed", "paragraph": "Paragraph"},
            default="tailed",
        ),
        Setting("tokens", "Tokens", "Their median; some write four times as many.", default=32, bounds=(8, 256)),
        Setting(
            "shared",
            "Shared system prompt",
            "Which prompts begin with it.",
            {0: "None", 1: "All", 4: "Every 4th"},
            default=1,
        ),
        replace(SETTINGS["paged"], default=True),
        replace(SETTINGS["enable_prefix_caching"], default=True),
        SETTINGS["eviction"],
        replace(SETTINGS["num_blocks"], help="", default=192, bounds=(8, 1024), step=1, may_be_empty=False, vllm=""),
        replace(SETTINGS["block_size"], options={size: str(size) for size in (4, 8, 16, 32)}),
        Setting(
            "max_num_seqs",
            "Max at once",
            "Sequences in a step; the others wait. vLLM: max_num_seqs.",
            default=16,
            bounds=(1, 32),
        ),
        replace(SETTINGS["kv_dtype"], help="", vllm=""),
        replace(
            SETTINGS["speculative"],
            options={name: DRAFTERS[name] for name in ("off", "draft", "ngram")},
            help="",
            about={},
            vllm="",
        ),
        SETTINGS["num_speculative_tokens"],
        replace(SETTINGS["num_speculative_tokens_per_batch_size"], vllm=""),
        replace(SETTINGS["temperature"], default=0.8),
        replace(SETTINGS["seed"], help="The first sequence's; the others count up.", default=7, may_be_empty=False),
        replace(
            SETTINGS["prompt"],
            name="system",
            label="System prompt",
            help="The beginning of these prompts.",
            default=SYSTEM,
            max_lines=6,
        ),
    )
)
COMING = ("sequences", "continuations", "every", "lengths", "tokens", "shared", "system", "temperature", "seed")
"""The inputs that say which sequences arrive."""


class PoolInputs(FORM.values_class("PoolValues")):
    """The page's controls, with their initial values.

    ``every``: steps between two arrivals; 0: all at once. ``continuations`` of a prompt arrive together. ``lengths``,
    ``tokens``: see ``lab.measure.workload.user_requests``.
    ``shared``: one in so many prompts begins with ``system``; 0: none. The sequences' seeds count up from ``seed``.
    """

    @property
    def gammas(self) -> str:
        return self.num_speculative_tokens_per_batch_size if self.speculative != "off" else ""

    @property
    def beginning(self) -> str:
        """The beginning of the prompts that begin alike."""
        return self.system.strip() if self.shared else ""

    def asked(self) -> PoolWorkload:
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
            "num_speculative_tokens": self.num_speculative_tokens if self.speculative != "off" else None,
            "num_speculative_tokens_per_batch_size": self.gammas,
            "max_num_seqs": "all" if self.max_num_seqs >= self.sequences else self.max_num_seqs,
        }
        coming = tuple(values.pop(name) for name in COMING)
        words = {name: FORM[name].value_in_words(value) for name, value in values.items()}
        return PoolWorkload(coming, {FORM[name].label: word for name, word in words.items()})

    def config(self) -> EngineConfig:
        """Raises ConfigError if an input makes no sense."""
        FORM.check(vars(self))
        per_size = {"num_speculative_tokens_per_batch_size": self.gammas}
        return EngineConfig(**fields_of(EngineConfig, self) | per_size)

    def jobs(self) -> list[PlannedRequest]:
        """Raises PromptError if the system prompt is too long."""
        return user_requests(
            self.sequences,
            self.lengths,
            self.tokens,
            temperature=self.temperature,
            seed=self.seed,
            beginning=bounded(self.beginning),
            of_every=max(1, self.shared),
            continuations=self.continuations,
        )


class PoolPreset(NamedTuple):
    """Something to watch: its label, what to look for, and the inputs that show it."""

    label: str
    about: str
    inputs: PoolInputs


_SCENARIOS = tomllib.loads(Path(__file__).with_name("pool_scenarios.toml").read_text("utf-8"))
PRESETS = {key: PoolPreset(one["label"], one["about"], PoolInputs(**one["inputs"])) for key, one in _SCENARIOS.items()}


def from_link(query: Mapping[str, str]) -> tuple[PoolInputs, list[str]]:
    """The inputs a link asks for, and a sentence for each value that was left out."""
    asked, notices = FORM.read(query)
    inputs = PoolInputs(**asked)
    for name, missing in unmet(vars(inputs)).items():
        if FORM[name].off is not None:
            if name in asked and asked[name] != FORM[name].off:
                notices.append(f"The link's {name} was left out: it needs {missing.what}.")
            inputs = replace(inputs, **{name: FORM[name].off})
    return inputs, notices


def address(inputs: PoolInputs) -> str:
    """The page's address with these inputs, relative to the other pages."""
    query = FORM.query(vars(inputs))
    return f"pool?{query}" if query else "pool"


def in_lab(inputs: PoolInputs) -> str:
    """The Lab's address, relative to the other pages, where the first of these sequences runs alone with these
    settings, gamma that of a batch of one. Empty if an input makes no sense: its run says why."""
    try:
        inputs.config()
        first = inputs.jobs()[0]
    except LabError:
        return ""
    values = {name: value for name, value in vars(inputs).items() if name in LAB.names and name != "num_blocks"}
    for _, _, gamma in gamma_table(inputs.gammas)[:1]:
        alone = min(gamma, inputs.num_speculative_tokens)
        values |= {"num_speculative_tokens": alone} if alone else {"speculative": "off"}
    most = min(first.sampling.max_tokens, int(LAB["max_tokens"].bounds[1]))
    return f"./?{LAB.query(values | {'prompt': first.prompt, 'max_tokens': most})}&run=1"


def preset_of(inputs: PoolInputs) -> str | None:
    """The preset with exactly these inputs."""
    return next((key for key, preset in PRESETS.items() if preset.inputs == inputs), None)
