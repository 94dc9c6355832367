"""The capstone: three cases, each a GPU, a model, a load and targets, and the grade of the settings chosen for it.

Everything is simulated (``lessons.capstone.simulation``); ``ASSUMED`` says what was assumed.
"""

import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lab.config import EngineConfig, KVFormat, require_whole
from lab.engine.step_limits import LEAST_BATCHED_TOKENS
from lab.errors import ConfigError
from lab.memory.capacity import Deployment, Lengths
from lab.memory.catalogue import GiB, device_bytes
from lab.memory.model_memory import ModelInfo, known_models
from lab.trace.roofline import Limits
from lab.vllm.serve_command import WithDraft, serve_command
from lessons.capstone.simulation import Clockwork, Load, Simulated, simulate
from lessons.experiments.counts import CARDS

DRAFT = "llama-3.2-1b"
DRIVER = GiB
"""Assumed memory of the driver's own context."""
ASSUMED = (
    "Nothing here was measured. Every time is calculated, and no model ran. The scheduler, the block pool and the "
    "prefix cache are the lab's own code. A step takes the least time that the data sheet's rates allow, so a real "
    "server is slower. Whether a draft token is accepted is drawn at random, at the assumed rate. N-gram lookup takes "
    "no time. Weights are BF16. What gpu-memory-utilization leaves free has to hold 1 GiB for the driver, and the "
    "activations and logits of one step. Arrivals, lengths and draws are random with a fixed seed."
)


@dataclass(frozen=True, kw_only=True)
class ServerChoices:
    """The settings that are chosen, by the names of vLLM where it has them."""

    kv_dtype: KVFormat = "auto"
    gpu_memory_utilization: float = 0.9
    max_num_seqs: int = 16
    max_num_batched_tokens: int = 8192
    enable_prefix_caching: bool = False
    speculative: str = "off"
    num_speculative_tokens: int = 4

    def __post_init__(self) -> None:
        require_whole("max_num_seqs", self.max_num_seqs, 1, 1024)
        require_whole("max_num_batched_tokens", self.max_num_batched_tokens, LEAST_BATCHED_TOKENS, 65536)
        if self.speculative not in ("off", "draft", "ngram"):
            raise ConfigError(f"speculative must be off, draft or ngram here, not {self.speculative!r}.")
        if not 0.1 <= self.gpu_memory_utilization <= 1:
            raise ConfigError(f"gpu_memory_utilization must be from 0.1 to 1, not {self.gpu_memory_utilization!r}.")

    @property
    def config(self) -> EngineConfig:
        """Raises ConfigError for a value out of range."""
        return EngineConfig(
            kv_dtype=self.kv_dtype,
            paged=True,
            enable_prefix_caching=self.enable_prefix_caching,
            speculative=self.speculative,
            num_speculative_tokens=self.num_speculative_tokens,
        )


class Targets(NamedTuple):
    """Milliseconds of the 95th percentiles, and requests per second of which each keeps to both limits."""

    ttft_ms: float
    tpot_ms: float
    goodput: float

    @property
    def words(self) -> dict[str, str]:
        """The limits in words, by the name of the grade."""
        return {
            "TTFT p95": f"at most {self.ttft_ms:,.0f} ms",
            "TPOT p95": f"at most {self.tpot_ms:,.0f} ms",
            "Goodput": f"at least {self.goodput:g}/s",
        }


@dataclass(frozen=True, kw_only=True)
class CapstoneCase:
    """A task. ``gpu``: a key of ``CARDS``. ``device``: its name in the catalogue. ``acceptance``: assumed for a draft
    token whose predecessors were accepted, by drafter."""

    title: str
    about: str
    gpu: str
    device: str
    load: Load
    targets: Targets
    acceptance: dict[str, float]
    model: str = "llama-3.1-8b"

    @property
    def given(self) -> str:
        """The figures that are looked up, and those that are assumed."""
        bandwidth, flops = CARDS[self.gpu]
        return (
            f"By NVIDIA's data sheet (https://www.nvidia.com/en-us/data-center/{self.gpu}/), the card reads "
            f"{bandwidth / 1e12:g} TB/s and computes {flops / 1e12:.0f} TFLOP/s in dense BF16. The case "
            "assumes acceptance rates. While no earlier draft "
            f"token of the round was rejected, one from {known_models()[DRAFT].hub} is accepted with probability "
            f"{self.acceptance['draft']:.0%}, and one from n-gram lookup with {self.acceptance['ngram']:.0%}. Other "
            "models and texts have other rates."
        )

    def deployment(self, chosen: ServerChoices) -> Deployment:
        """Raises ConfigError: see ``Deployment``."""
        longest = self.load.longest
        about = {
            "kv_dtype": chosen.kv_dtype,
            "memory": device_bytes(self.device),
            "set_aside": 1 - chosen.gpu_memory_utilization,
            "lengths": Lengths(longest, longest),
        }
        draft, target = _whole(known_models()[DRAFT], about), known_models()[self.model]
        if chosen.speculative != "draft":
            return _whole(target, about)
        return WithDraft(shape=target.shape, parameters=target.parameters, draft=draft, **about)


def _whole(model: ModelInfo, about: dict) -> Deployment:
    return Deployment(shape=model.shape, parameters=model.parameters, **about)


def _case(load: dict[str, Any], targets: list[float], **more: Any) -> CapstoneCase:
    load = {name: tuple(value) if isinstance(value, list) else value for name, value in load.items()}
    return CapstoneCase(load=Load(**load), targets=Targets(*targets), **more)


_DATA = tomllib.loads(Path(__file__).with_name("cases.toml").read_text("utf-8"))
CASES = {name: _case(**case) for name, case in _DATA.items()}


@dataclass(frozen=True)
class Grade:
    """One target: what was wanted and found, and if it failed what limited it."""

    name: str
    wanted: str
    found: str
    passed: bool
    limited: str = ""


@dataclass(frozen=True)
class Graded:
    """``command``: vLLM's, for these choices. ``figures``: of the simulation in sentences, empty if it did not run."""

    marks: list[Grade]
    figures: str
    command: str

    @property
    def passed(self) -> bool:
        return all(mark.passed for mark in self.marks)


def attempt(
    case: CapstoneCase, chosen: ServerChoices, seed: int = 0, watch: Callable[[float], None] = lambda share: None
) -> Graded:
    """Simulate a case with these choices, and grade it. ``watch`` is told the share of requests that are served.

    Raises ConfigError for a choice out of range, and what ``watch`` raises.
    """
    command = serve_command(
        chosen.config,
        known_models()[case.model].hub,
        known_models()[DRAFT].hub if chosen.speculative == "draft" else None,
        max_model_len=case.load.longest,
        gpu_memory_utilization=chosen.gpu_memory_utilization,
        max_num_seqs=chosen.max_num_seqs,
        max_num_batched_tokens=chosen.max_num_batched_tokens,
    )
    deployment = case.deployment(chosen)
    fits = memory(case, chosen, deployment)
    if not fits.passed:
        return Graded([fits], "", command)
    result = served(case, chosen, deployment, seed, watch)
    return Graded([fits, *grade(case, chosen, result)], figures(result, deployment), command)


def served(
    case: CapstoneCase,
    chosen: ServerChoices,
    deployment: Deployment,
    seed: int = 0,
    watch: Callable[[float], None] = lambda share: None,
) -> Simulated:
    """The simulation of a case."""
    draft = deployment.draft if isinstance(deployment, WithDraft) else None
    seqs, tokens = chosen.max_num_seqs, chosen.max_num_batched_tokens
    rate = case.acceptance[chosen.speculative]
    clockwork = Clockwork(deployment, draft, chosen.config, Limits(*CARDS[case.gpu]), seqs, tokens, rate, seed)
    return simulate(clockwork, case.load, seed, watch)


def memory(case: CapstoneCase, chosen: ServerChoices, deployment: Deployment) -> Grade:
    """A grade: does the longest conversation fit beside the weights, and a step's activations beside the share used?"""
    shape, longest = deployment.shape, case.load.longest
    per_token = 2 * (4 * shape.hidden_size + 2 * shape.intermediate_size)
    each = 1 + (chosen.num_speculative_tokens if chosen.speculative != "off" else 0)
    rows = min(chosen.max_num_seqs * each, chosen.max_num_batched_tokens)
    needed = DRIVER + chosen.max_num_batched_tokens * per_token + rows * shape.vocabulary * 4
    beside = deployment.memory - deployment.usable_bytes
    held = deployment.num_blocks * deployment.block_size
    found, limited = f"a cache of {held:,} tokens", ""
    if held < longest:
        helps = ["use more of the memory"]
        helps += ["use a smaller KV dtype"] * (held > 0) + ["use no draft model"] * (chosen.speculative == "draft")
        limited = (
            f"The weights take {deployment.weight_bytes / GiB:.1f} of {deployment.usable_bytes / GiB:.1f} GiB, and the "
            f"cache {deployment.token_bytes / 1024:.0f} KiB per token. To make room, {' or '.join(helps)}."
        )
    elif needed > beside:
        limited = (
            f"The driver and a step's activations and logits take {needed / GiB:.1f} GiB, and {beside / GiB:.1f} GiB "
            "are left for them. Use less of the memory for weights and cache, or fewer tokens per step."
        )
    return Grade("Fits memory", f"at least {longest:,} tokens", found, not limited, limited)


def grade(case: CapstoneCase, chosen: ServerChoices, result: Simulated) -> list[Grade]:
    """The three targets of latency and goodput. Goodput: requests per second that keep to both limits (Zhong et al.,
    DistServe, OSDI 2024)."""
    targets = case.targets
    ttft = float(np.percentile([one.ttft for one in result.requests], 95))
    tpot = float(np.percentile([one.tpot for one in result.requests], 95))
    good = sum(one.ttft <= targets.ttft_ms and one.tpot <= targets.tpot_ms for one in result.requests)
    goodput = 1000 * good / result.steps[-1].ended
    marks = []
    for name, found, wanted, why in (
        ("TTFT p95", ttft, targets.ttft_ms, _late_start),
        ("TPOT p95", tpot, targets.tpot_ms, _slow_tokens),
    ):
        passed = found <= wanted
        limited = "" if passed else " ".join(why(chosen, result, wanted))
        marks.append(Grade(name, targets.words[name], f"{found:,.1f} ms", passed, limited))
    passed = goodput >= targets.goodput
    limited = "" if passed else " ".join(_few_good(case, chosen, result, good))
    return [*marks, Grade("Goodput", targets.words["Goodput"], f"{goodput:.3g}/s", passed, limited)]


WAITS = {
    "seqs": "all {seqs} places of the batch were taken. Raise max-num-seqs.",
    "blocks": "the block pool was full. Make room for more cache: a higher utilization, a smaller KV dtype, shared "
    "prefixes.",
    "tokens": "the steps' tokens were used up. Raise max-num-batched-tokens, or find more of the prompts in the cache.",
}


def _late_start(chosen: ServerChoices, result: Simulated, wanted: float) -> Iterator[str]:
    late = [one for one in result.requests if one.ttft > wanted]
    waited = sum(one.admitted - one.arrived for one in late) / sum(one.ttft for one in late)
    if waited > 0.5:
        causes = [one.wait or "tokens" for one in late]
        cause = max(WAITS, key=causes.count)
        why = WAITS[cause].format(seqs=chosen.max_num_seqs)
        yield f"Late requests spent {waited:.0%} of their time to the first token in the queue, because {why}"
    else:
        read = sum(one.prompt - one.cached for one in late) / len(late)
        yield f"Reading the prompts took the time: {read:,.0f} tokens each on average."
    cached, prompts = (sum(getattr(one, of) for one in result.requests) for of in ("cached", "prompt"))
    if cached < 0.3 * prompts and any(one.turn for one in result.requests):
        off = "is off" if not chosen.enable_prefix_caching else "found little"
        yield f"Prefix caching {off}: {1 - cached / prompts:.0%} of all prompt tokens were computed."


def _slow_tokens(chosen: ServerChoices, result: Simulated, wanted: float) -> Iterator[str]:
    slow = [one for one in result.steps if one.ms > wanted] or sorted(result.steps, key=lambda one: one.ms)[-20:]
    prompts = [one for one in slow if one.prefill]
    if len(prompts) > len(slow) / 2:
        mean = sum(one.prefill for one in prompts) / len(prompts)
        yield (
            f"Slow steps also read prompts, {mean:,.0f} tokens each on average, and everyone in the batch waited. "
            "Lower max-num-batched-tokens, or find the prompts in the prefix cache."
        )
        return
    ms, drafting, read = (
        sum(getattr(one, of) for one in slow) / len(slow) for of in ("ms", "drafting_ms", "gigabytes")
    )
    if drafting > 0.4 * ms:
        yield f"Drafting takes {drafting / ms:.0%} of a step. Draft fewer tokens, or none."
    elif sum(one.bound == "memory" for one in slow) > len(slow) / 2:
        yield f"Most of the slow steps are memory-bound. On average they read {read:.1f} GB in {ms - drafting:.1f} ms."
        if chosen.speculative == "off":
            yield "Draft tokens would give several tokens for that reading."
        else:
            yield "Accept more tokens per round, or read less: a smaller KV dtype, fewer sequences at once."
    else:
        yield "These steps are compute-bound. Verify fewer draft tokens, or run fewer sequences at once."
    if result.preempted:
        yield f"The block pool ran out {result.preempted} times, and the preempted sequences were computed again."


def _few_good(case: CapstoneCase, chosen: ServerChoices, result: Simulated, good: int) -> Iterator[str]:
    ttft = sum(one.ttft > case.targets.ttft_ms for one in result.requests)
    slow = sum(one.tpot > case.targets.tpot_ms for one in result.requests)
    yield f"{good} of {len(result.requests)} requests kept to both limits: {ttft} began late, {slow} wrote slowly."
    if good > 0.9 * len(result.requests):
        running = sum(one.running * one.ms for one in result.steps) / sum(one.ms for one in result.steps)
        yield f"On average {running:.0f} sequences ran at once. A larger batch shares each reading of the weights."


def figures(result: Simulated, deployment: Deployment) -> str:
    """The simulation in a sentence or two."""
    requests, seconds = result.requests, result.steps[-1].ended / 1000
    written = sum(count for one in requests for _, count in one.came)
    cached = sum(one.cached for one in requests) / sum(one.prompt for one in requests)
    return (
        f"Calculated: {len(requests)} requests take {seconds:,.1f} s and {len(result.steps):,} steps, which is "
        f"{written / seconds:,.0f} output tokens per second. At most "
        f"{max(one.running for one in result.steps)} run at once, in a pool of {deployment.num_blocks:,} blocks. The "
        f"prefix cache saves {cached:.0%} of the prompt tokens. Preemptions: {result.preempted}."
    )
