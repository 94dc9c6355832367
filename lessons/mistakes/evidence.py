"""The work of a variant of a mistake's code on the embedded pair, beside what the right repair does.

Code that writes a text is run greedily, so that there is one right text; a rule that draws is measured by the outcome
of thousands of draws. All of it is measured when it is asked for.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch
from tokenizers import Tokenizer

from lab.claims.claim import ClaimChart, Series
from lab.claims.trial import Stopped
from lab.errors import LabError
from lab.measure.difference import common_length
from lab.measure.interval import Interval, g_test, ratio_interval
from lab.measure.workload import held_out_prompts
from lab.models.loader import WEIGHTS
from lab.models.tokenizer import TOKENIZER_FILE
from lab.util.messages import counted, error_summary
from lessons.mistakes.mistake import Mistake
from lessons.mistakes.runtime import GrowingCache, Reader, models

GAMMA = {"bonus": 2}
"""Draft tokens per round, where it is not 4."""
TOKENS = 24
"""Tokens that a variant writes."""
PROMPT = 20
"""Tokens of its prompt."""
PASSES = 2
"""Passes per token of code that drafts, about, of target and draft together."""
SECONDS = 120.0
"""The most that a variant may take: twenty times as long as on a quiet laptop."""
SHRUNK = 2.0**-24
"""How much smaller values are in the cache whose scale underflows."""
PLACES, DRAWS = 12, 4000
"""Texts after which an acceptance rule is tried, and draft tokens after each."""
NOTICED = 1e-6
"""A p-value below this counts as another distribution."""
FLUENT = 0.05
"""A text reads fluently if the target gives its tokens at least this probability (geometric mean)."""
WASTE = 1.5
"""Reading this many times as many tokens as the right code is wasteful."""

Outcome = Literal["crash", "other", "slow", "right"]
Row = tuple[str, str, str]
"""A quantity's name, its value here, and its value with the right code."""


class Texts(NamedTuple):
    """Two texts. ``same``: what both begin with, behind the prompt. ``this``, ``right``: the first token by which each
    differs, and how it goes on; empty strings at the end of a text."""

    prompt: str
    same: str
    this: tuple[str, str]
    right: tuple[str, str]

    @classmethod
    def of(cls, ids: list[int], this: list[int], right: list[int]) -> Texts:
        decode, same = tokenizer().decode, common_length(this, right)

        def parts(tokens: list[int]) -> tuple[str, str]:
            ends = [len(decode(ids + tokens[:count])) for count in (same, same + 1)]
            whole = decode(ids + tokens)
            return whole[ends[0] : ends[1]], whole[ends[1] :]

        return cls(decode(ids), decode(ids + right[:same])[len(decode(ids)) :], parts(this), parts(right))


@dataclass(frozen=True)
class MistakeEvidence:
    """The evidence of one run, beside that of the right code.

    Attributes:
        outcome: what the code does.
        noticed: whether a reader of its text would notice.
        say: that in a sentence or two.
        text: None if it writes none.
        numbers: quantities with both values.
        chart: a picture of it, if one shows it.
    """

    outcome: Outcome
    noticed: bool
    say: str
    text: Texts | None
    numbers: list[Row]
    chart: ClaimChart | None = None


@dataclass
class RunLimit:
    """Ends a run that takes too long or was cancelled, before its next pass. ``report`` gets what is under way.
    ``passes``: of any model, since the start of its present part."""

    cancelled: threading.Event = field(default_factory=threading.Event)
    report: Callable[[str], None] = lambda words: None
    seconds: float = SECONDS
    passes: int = 0
    _ends: float = 0.0
    _expected: int = 1
    _between: tuple[float, float] = (0.0, 1.0)

    def start(self, words: str, passes: int = 1, between: tuple[float, float] = (0.0, 1.0)) -> None:
        """Begin a part of about so many ``passes``, which takes the share ``between`` these of the whole."""
        self.report(words)
        self._ends = time.monotonic() + self.seconds
        self.passes, self._expected, self._between = 0, passes, between

    @property
    def share(self) -> float:
        """The share that is done, 0 to 1, as far as the number of passes is known."""
        begin, end = self._between
        return begin + (end - begin) * min(1.0, self.passes / self._expected)

    def __call__(self) -> None:
        self.passes += 1
        if self.cancelled.is_set():
            raise Stopped
        if time.monotonic() > self._ends:
            raise LabError(f"It was stopped after {self.seconds:.0f} seconds: it never ends, or the machine is busy.")


@functools.cache
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(WEIGHTS / "target" / TOKENIZER_FILE))


def prompt(number: int) -> list[int]:
    """The beginning of a paragraph that neither model was trained on."""
    return tokenizer().encode(held_out_prompts()[number], add_special_tokens=False).ids[:PROMPT]


def evidence(mistake: Mistake, program: dict[str, Any], watch: RunLimit, number: int = 1) -> MistakeEvidence:
    """Run a variant and the right repair. Raises Stopped, and LabError if it takes too long.

    Args:
        program: the names that the variant's file defines.
        number: of the prompt.
    """
    right = mistake.program(mistake.right)
    if mistake.id == "ratio":
        return _of_rule(program, right, watch)
    key, begin = (mistake.id, number, TOKENS), 0.0
    if key not in _right:
        begin = 0.5
        watch.start("running the right code", TOKENS * (1 if mistake.id in CACHES else PASSES), (0.0, begin))
        _right[key] = _written(mistake.id, right, watch, number)
    watch.start("running this code", _right[key].passes_of_both, (begin, 1.0))
    found = _written(mistake.id, program, watch, number)
    return _of_text(mistake.id, found, _right[key], number)


# -- code that writes a text -----------------------------------------------------------------

_right: dict[tuple[str, int, int], VariantRun] = {}
"""What the right code wrote in this process, by mistake, prompt and number of tokens."""


@dataclass
class VariantRun:
    """``passes``: of the target, each with the tokens read and those attended to. ``passes_of_both``: with the draft's.
    ``extra``: points of its chart."""

    tokens: list[int] = field(default_factory=list)
    error: str = ""
    seconds: float = 0.0
    passes: list[tuple[int, int]] = field(default_factory=list)
    passes_of_both: int = 1
    extra: list[tuple[float, float]] = field(default_factory=list)

    @property
    def read(self) -> int:
        return sum(read for read, _ in self.passes)


def _written(id: str, program: dict[str, Any], watch: RunLimit, number: int) -> VariantRun:
    """The tokens that a variant writes, and its error if it raises one."""
    written = VariantRun()
    target, draft = models()
    reader = Reader(target, watch, written.passes, SHRUNK if id == "scale" else 1.0)
    began = time.perf_counter()
    try:
        if id in CACHES:
            _decode(id, program, reader, prompt(number), written)
        else:
            caches = [GrowingCache() for _ in range({"reread": 2, "rollback": 1}.get(id, 0))]
            how = prompt(number), TOKENS, GAMMA.get(id, 4), *caches
            written.tokens = [int(token) for token in program["speculate"](reader, Reader(draft, watch), *how)]
        if id == "scale":
            written.extra = [(power, _error(program["quantize"], 10.0**power)) for power in POWERS]
    except (Stopped, LabError):
        raise
    except Exception as error:  # of any kind: that is the evidence
        written.error = error_summary(error)
    written.seconds, written.passes_of_both = time.perf_counter() - began, max(1, watch.passes)
    return written


def _decode(id: str, program: dict[str, Any], reader: Reader, ids: list[int], written: VariantRun) -> None:
    """Greedy decoding, token by token, with the variant's cache."""
    cache, new = CACHES[id](program["Cache"], ids), ids
    try:
        for place in range(TOKENS):
            new = [reader(new, cache)[-1].argmax().item()]
            written.tokens += new
            if id == "blocks":
                written.extra.append((place + 1, len(cache.blocks)))
    finally:
        if id == "position":
            filled = cache.keys.abs().sum((1, 3)) > 0  # [layers, slots]
            written.extra = [(layer + 1, row.nonzero()[0].item()) for layer, row in enumerate(filled) if row.any()]


def _shape() -> tuple[int, int, int]:
    config = models()[0].config
    return config.num_hidden_layers, config.num_key_value_heads, config.head_dim


def _with_room(cache: Callable[..., Any], _: list[int]) -> Any:
    layers, heads, dim = _shape()
    return cache(layers, heads, 1024, dim)


def _with_pool(cache: Callable[..., Any], ids: list[int]) -> Any:
    layers, heads, dim = _shape()
    return cache(torch.zeros(layers, 2, heads, 1024, dim), list(range(64)), len(ids))


CACHES: dict[str, Callable[[Callable[..., Any], list[int]], Any]] = {
    "position": _with_room,
    "scale": lambda cache, _: cache(_shape()[0]),
    "blocks": _with_pool,
}
"""By mistake, how its cache is made for a prompt. The other mistakes are in the decoding itself."""
POWERS = range(-10, 3)
"""Largest numbers of rows that are quantised, as powers of 10."""


def _error(quantize: Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]], size: float) -> float:
    """Relative error of rows whose largest number is ``size``; 1: nothing of them is left."""
    rows = torch.randn(1, 64, 64, generator=torch.Generator().manual_seed(0))
    rows *= size / rows.abs().amax(-1, keepdim=True)
    codes, scale = quantize(rows)
    return ((codes * scale.float() - rows).norm() / rows.norm()).item()


def _of_text(id: str, found: VariantRun, right: VariantRun, number: int) -> MistakeEvidence:
    same = common_length(found.tokens, right.tokens)
    texts = Texts.of(prompt(number), found.tokens, right.tokens)
    fluency, usual = (_fluency(prompt(number), one.tokens) for one in (found, right))
    numbers: list[Row] = [
        ("Tokens written", str(len(found.tokens)), str(len(right.tokens))),
        ("Target passes", str(len(found.passes)), str(len(right.passes))),
        ("Tokens that the target read", f"{found.read:,}", f"{right.read:,}"),
        ("Probability per token, by the target", f"{fluency:.1%}", f"{usual:.1%}"),
        ("Time", f"{found.seconds:.2f} s", f"{right.seconds:.2f} s"),
    ]
    if not found.tokens:
        del numbers[3]
    if id == "scale" and found.extra:
        for (power, error), (_, usual_error) in zip(found.extra, right.extra, strict=True):
            if power in (-6, 0):
                numbers.insert(
                    0,
                    (
                        f"Error of rows up to {10.0**power:.6f}".rstrip("0").rstrip("."),
                        f"{error:.1%}",
                        f"{usual_error:.1%}",
                    ),
                )
    chart = _chart(id, found, right)
    if found.error:
        until = "The text until then is right." if same == len(found.tokens) else "The text before is wrong, too."
        said = f"{found.error}, after {counted(len(found.tokens), 'token')}. {until}"
        said = said if found.tokens else f"{found.error}, before the first token."
        return MistakeEvidence("crash", True, said, texts, numbers, chart)
    if found.tokens != right.tokens:
        odd = fluency < FLUENT
        reads = "This one no longer reads like English." if odd else "This one still reads like English."
        said = f"The texts differ from token {same + 1} on. {reads}"
        return MistakeEvidence("other", odd, said, texts, numbers, chart)
    if len(found.passes) > len(right.passes) or found.read > WASTE * right.read:
        said = "The text is right, token for token, so reading does not show the mistake. "
        if len(found.passes) > len(right.passes):
            said += f"It takes {len(found.passes)} target passes, where {len(right.passes)} are enough."
        else:
            said += f"The target reads {found.read:,} tokens, where {right.read:,} are enough."
        return MistakeEvidence("slow", False, said, texts, numbers, chart)
    return MistakeEvidence(
        "right", False, "Text, target passes and tokens read are as they should be.", texts, numbers, chart
    )


def _fluency(ids: list[int], written: list[int]) -> float:
    """Geometric mean of the probabilities that the target gives to the tokens of a text."""
    if not written:
        return 0.0
    logits = Reader(models()[0], lambda: None)(ids + written)[len(ids) - 1 : -1]
    chosen = logits.log_softmax(-1).gather(-1, torch.tensor(written)[:, None])
    return chosen.mean().exp().item()


def _chart(id: str, found: VariantRun, right: VariantRun) -> ClaimChart:
    """A line for this code and one for the right code."""
    if id in CACHES:
        x, y, log = {
            "position": ("layer", "first slot with a key", ""),
            "scale": ("largest number of a row, power of 10", "relative error", "y"),
            "blocks": ("tokens written", "blocks of the text", ""),
        }[id]
        lines = found.extra, right.extra
    else:
        x, y, log = "target pass", "tokens attended to", ""
        lines = ([(place, seen) for place, (_, seen) in enumerate(one.passes, 1)] for one in (found, right))
    names = ("this code", "right code")
    series = [Series(name, *_columns(line), "measured") for name, line in zip(names, lines, strict=True) if line]
    return ClaimChart("lines", x, y, tuple(series), log)


def _columns(points: list[tuple[float, float]]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    x, y = zip(*points, strict=True)
    return tuple(map(float, x)), tuple(map(float, y))


# -- a rule that draws -----------------------------------------------------------------------


@dataclass(frozen=True)
class Drawn:
    """The outcome of a rule. ``shares``: of each token, by place; ``distances``: total variation from p."""

    accepted: float
    shares: list[torch.Tensor]
    distances: list[float]
    p_value: float


@functools.cache
def _rows() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Target's and draft's distributions [vocabulary] of the token after each of a few texts."""
    readers = [Reader(model, lambda: None) for model in models()]
    return [tuple(reader(prompt(place))[-1].softmax(-1) for reader in readers) for place in range(PLACES)]


def drawn(verify: Callable[..., tuple[torch.Tensor, torch.Tensor]], watch: RunLimit, seed: int = 0) -> Drawn:
    """Draw draft tokens from q at every place, and have the rule decide. Distances are taken over the likeliest tokens
    and all others as one: of rare tokens, thousands of draws tell little."""
    generator = torch.Generator().manual_seed(seed)
    accepted, shares, distances, worst = 0.0, [], [], 1.0
    for p, q in _rows():
        watch()
        torch.manual_seed(1000 + seed + len(shares))  # of the rule's own draws: another stream than the rest
        drafted = torch.multinomial(q, DRAWS, replacement=True, generator=generator)
        kept, tokens = verify(p, q, drafted, torch.rand(DRAWS, generator=generator))
        counts = torch.bincount(tokens, minlength=len(p))
        accepted += kept.float().mean().item() / PLACES
        shares.append(counts / DRAWS)
        distances.append(_distance(counts / DRAWS, p))
        worst = min(worst, g_test(counts, p.double() / p.double().sum(), least=10.0))
    return Drawn(accepted, shares, distances, min(1.0, worst * PLACES))


def _distance(share: torch.Tensor, p: torch.Tensor) -> float:
    top = p.topk(30).indices
    rest = (share[top].sum() - p[top].sum()).abs()
    return ((share[top] - p[top]).abs().sum() + rest).item() / 2


def _of_rule(program: dict[str, Any], right: dict[str, Any], watch: RunLimit) -> MistakeEvidence:
    watch.start(f"drawing {DRAWS:,} draft tokens after each of {PLACES} texts", 2 * PLACES)
    expected = drawn(right["verify"], watch)
    try:
        found = drawn(program["verify"], watch)
    except (Stopped, LabError):
        raise
    except Exception as error:
        return MistakeEvidence("crash", True, f"It crashes: {error_summary(error)}.", None, [])
    far, near = ratio_interval(found.distances), ratio_interval(expected.distances)
    numbers: list[Row] = [
        ("Distance from the target's distribution", _percent(far), _percent(near)),
        ("Draft tokens accepted", f"{found.accepted:.0%}", f"{expected.accepted:.0%}"),
        ("p-value of the G-test", f"{found.p_value:.2g}", f"{expected.p_value:.2g}"),
    ]
    place = max(range(PLACES), key=found.distances.__getitem__)
    p = _rows()[place][0]
    top = p.topk(8).indices
    names = tuple(
        f"{rank}. “{tokenizer().decode([token]).strip() or '↵'}”" for rank, token in enumerate(top.tolist(), 1)
    )
    series = (
        Series("what comes out", names, tuple(found.shares[place][top].tolist()), "measured"),
        Series("p of the target", names, tuple(p[top].tolist()), "formula"),
    )
    chart = ClaimChart("bars", "probability", "", series)
    if found.p_value < NOTICED:
        said = (
            f"What comes out is {far.value:.0%} away from the target's distribution; with the right rule, chance alone "
            f"gives {near.value:.1%}. Each text reads well, so reading does not show it."
        )
        return MistakeEvidence("other", False, said, None, numbers, chart)
    said = "What comes out has the target's distribution, as far as so many draws can tell."
    return MistakeEvidence("right", False, said, None, numbers, chart)


def _percent(found: Interval) -> str:
    spread = "" if found.low is None else f" ({found.low:.1%} to {found.high:.1%})"
    return f"{found.value:.1%}{spread}"
