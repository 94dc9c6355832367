"""What happened, in words. The sentences are reviewed in ``narration.txt``; after a change on purpose,
``UPDATE_SNAPSHOTS=1 python -m pytest tests/visualize/test_narration.py`` writes it anew."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from lab.config import EngineConfig, SamplingParams
from lab.engine.adaptive_window import PROBE_EVERY
from lab.trace.events import (
    Admitted,
    BlockEvicted,
    BlockFreed,
    Bonus,
    CacheDropped,
    FellBack,
    Finished,
    Preempted,
    Proposed,
    Recovered,
    StepTimed,
    Verified,
    WindowChanged,
)
from lab.trace.metrics import measure
from lab.trace.recorder import BatchEvent
from lab.trace.roofline import Achieved
from tests import tiny_models
from tests.visualize.conftest import script
from visualize.pages.pool.pool_metrics import Tally
from visualize.pages.pool.pool_narration import narrated, over
from visualize.reduce.frames import Reducer
from visualize.reduce.narration import Narrator, limit
from visualize.states import DRAFTER_NAMES, STATES, sentences

SNAPSHOT = Path(__file__).with_name("narration.txt")


def narrator(prompt_tokens: int = 61, **config: Any) -> Narrator:
    return Narrator(asdict(EngineConfig(**config)), prompt_tokens, max_tokens=64)


def admitted(cached_tokens: int = 0, running: int = 1) -> Admitted:
    return Admitted(
        t_ms=0, owner=0, running=running, waiting=0, cached_tokens=cached_tokens, live_blocks=(), cached_blocks=()
    )


def timed(kind: str = "prefill", tokens: int = 61, step: int = 0) -> StepTimed:
    zero = dict.fromkeys(("draft_ms", "verify_ms", "sample_ms", "rest_ms", "total_ms"), 0.0)
    zero |= dict.fromkeys(("kv_tokens", "kv_reserved_bytes", "kv_used_bytes", "memory_bytes"), 0)
    zero |= dict.fromkeys(("draft_bytes", "draft_flops", "verify_bytes", "verify_flops"), 0)
    return StepTimed(
        t_ms=0, step=step, step_kind=kind, target_tokens=tokens, batch_sequences=1, batch_tokens=tokens, **zero
    )


def prefill(shown: Narrator, tokens: int, *pieces: str) -> str:
    return shown.step(timed(tokens=tokens), [], [], None, pieces, [])


def plain(shown: Narrator, step: int, *rare: Any) -> str:
    return shown.step(timed("decode", 1, step), [], [], None, [" x"], rare)


def a_round(shown: Narrator, *rare: Any, kept: int = 1, of: int = 2, pieces: int | None = None, u: float | None = None):
    """Round 7. With ``pieces`` the text ends after so many of its draft tokens."""
    proposals = [Proposed(t_ms=0, step=7, position=i, token_id=i, text=f" {'abcd'[i]}", q=0.31) for i in range(of)]
    verdicts = [
        Verified(t_ms=0, step=7, position=i, token_id=i, p=0.9 if i < kept else 0.0213, q=0.31, u=u, accepted=i < kept)
        for i in range(min(kept + 1, of))
    ]
    own = None
    if pieces is None:
        own = (Bonus if kept == of else Recovered)(t_ms=0, step=7, position=kept, token_id=9, text=" z", p=0.6)
    return shown.step(timed("verify", of + 1, 7), proposals, verdicts, own, [" a"] * (pieces or kept + 1), rare)


def ended(shown: Narrator, generated: int, reason: str = "length", message: str = "") -> str:
    return shown.ended(Finished(t_ms=9, reason=reason, text="", message=message), measure([]), generated)


def window(gamma: int, draft_ms: float | None = 0.9, verify_ms: float | None = 6.1) -> WindowChanged:
    return WindowChanged(t_ms=0, step=8, gamma=gamma, acceptance=0.45, draft_ms=draft_ms, verify_ms=verify_ms)


def reading() -> list[str]:
    """The prompt: from the cache, in chunks, again after a preemption."""
    cached = {"paged": True, "enable_prefix_caching": True}
    shown, hit, chunks = narrator(), narrator(**cached), narrator()
    chunks.admitted(admitted(16))
    short = Preempted(t_ms=0, tokens=61, cause="memory")
    draft = replace(timed(), draft_flops=10)
    return [
        shown.asked(),
        hit.admitted(admitted(48)),
        prefill(hit, 13, " x"),
        narrator(2, **cached, block_size=1).admitted(admitted(1)),
        narrator(**cached).admitted(admitted()),
        narrator(**cached, block_size=64).admitted(admitted()),
        narrator(16, **cached).admitted(admitted()),
        narrator(1, **cached).admitted(admitted()),
        narrator().admitted(admitted(running=3)),
        prefill(chunks, 32),
        prefill(chunks, 13, " x"),
        shown.admitted(admitted()) or "(nothing)",
        prefill(shown, 61, " x"),
        shown.preempted(Preempted(t_ms=0, tokens=61)),
        shown.admitted(admitted()),
        prefill(shown, 62, " x"),
        shown.admitted(admitted(48)),
        narrator().preempted(short),
        narrator(kv_cache=False).preempted(replace(short, tokens=0)),
        narrator(speculative="draft").step(draft, [], [], None, [" x"], []),
        narrator(1, speculative="draft").step(replace(draft, target_tokens=1), [], [], None, [" x"], []),
        narrator(speculative="early_exit").step(draft, [], [], None, [" x"], []),
        prefill(narrator(), 61, ""),
    ]


def steps() -> list[str]:
    """Steps without draft tokens, and rounds."""
    found = [plain(narrator(), 3), narrator().step(timed("decode", 1, 3), [], [], None, [""], [])]
    found += [
        narrator(kv_cache=False).step(timed("decode", tokens, 1), [], [], None, [" x"], []) for tokens in (1200, 2)
    ]
    found += [a_round(narrator(speculative=name)) for name in DRAFTER_NAMES if name != "off"]
    shown = narrator(speculative="draft")
    found += [a_round(shown, kept=kept, of=4, u=0.4409) for kept in (0, 2, 4)]
    found += [a_round(shown, kept=3, of=4, pieces=pieces) for pieces in (1, 2, 3)]
    return found


def windows() -> list[str]:
    """The adaptive window: why it changes, and when it leaves 0."""
    shown = narrator(speculative="draft", adaptive_window=True)
    found = [
        a_round(shown, window(2)),
        a_round(shown, window(0)),
        plain(shown, 8),
        plain(shown, 9, window(3)),
    ]
    found += [
        plain(shown, 10),
        a_round(shown, window(0, 0.2, None)),
        plain(shown, 12),
        plain(shown, 13, window(2, None)),
    ]
    found += [a_round(narrator(), window(1, 0.2, None))]
    shown = narrator(speculative="draft", adaptive_window=True)
    a_round(shown, window(0))
    found += [plain(shown, step) for step in range(8, PROBE_EVERY + 6)][-1:]
    return [*found, plain(shown, PROBE_EVERY + 6, window(1)), plain(shown, 39)]


def rarities() -> list[str]:
    """The rarest event is told, and its notice stays."""
    evicted = [BlockEvicted(t_ms=0, block=block) for block in (3, 4)]
    shown, int4 = narrator(speculative="draft"), narrator(kv_dtype="int4")
    failure = FellBack(t_ms=0, part="drafter", reason="Its output is not finite.")
    found = [
        a_round(shown, *evicted),
        a_round(shown, *evicted, window(2)),
        a_round(shown, *evicted, window(2), failure),
    ]
    found += [
        plain(int4, 3, FellBack(t_ms=0, part=part, reason="<b>\u202e"))
        for part in ("kv_format", "kernel", "cuda_graph", "compile", "full_pool")
    ]
    dropped = CacheDropped(t_ms=0, reason="The weights changed.")
    found.append(narrator().step(timed(), [], [], None, [" x"], [dropped]))
    return [*found, shown.notice, int4.notice, narrator(speculative="synthetic").notice]


def endings() -> list[str]:
    """The end: why, and what speculation gave."""
    found = [ended(narrator(), 64), ended(narrator(), 9), ended(narrator(), 0, "cancelled"), ended(narrator(), 1)]
    found += [ended(narrator(), 5, reason) for reason in ("eos", "stop", "cancelled")]
    found.append(ended(narrator(), 5, "error", "num_blocks is too small."))
    shown = narrator(speculative="draft")
    prefill(shown, 61, " x")
    a_round(shown, kept=2)
    found.append(ended(shown, 4))
    plain(shown, 8)
    found.append(ended(shown, 5))
    for pieces in (3, 1):
        shown = narrator(speculative="draft")
        for _ in range(2):
            a_round(shown, kept=2)
        a_round(shown, kept=3, of=4, pieces=pieces)
        found.append(ended(shown, 7 + pieces, "stop"))
    shown = narrator(speculative="draft")
    a_round(shown, kept=0)
    return [*found, ended(shown, 2)]


def pool() -> list[str]:
    """Steps of many requests: the rarest first."""

    def sentence(*events: tuple[int, Any], tokens: dict[int, int] | None = None) -> str:
        return narrated([BatchEvent(0.0, owner, event) for owner, event in events], tokens or {})[0]

    def freed(owner: int, block: int, references: int = 0, cached: bool = False) -> tuple[int, BlockFreed]:
        return owner, BlockFreed(
            t_ms=0, block=block, owner=owner, index=0, fill=0, references=references, cached=cached
        )

    def gone(owner: int) -> tuple[int, Preempted]:
        return owner, Preempted(t_ms=0, tokens=9)

    joined = admitted(32)
    own, shared = [freed(7, block) for block in range(3)], [freed(7, block, references=1) for block in range(3, 9)]
    end = {
        reason: Finished(t_ms=0, reason=reason, text="", message="No.") for reason in ("length", "cancelled", "error")
    }
    fell = FellBack(t_ms=0, part="cuda_graph", reason="It failed.")
    left = [freed(0, 1, cached=True), freed(1, 2, cached=True), freed(1, 3, cached=True)]
    return [
        sentence(gone(7), *own),
        sentence(gone(7), *own, gone(6), freed(6, 9), (3, joined)),
        sentence(freed(7, 9), gone(7), *own, *shared),
        sentence(gone(7), *shared),
        sentence(gone(7), *own, *shared, gone(6), *[freed(6, block) for block in range(3, 8)]),
        sentence((7, Preempted(t_ms=0, tokens=9, cause="memory"))),
        sentence(*[(4, BlockEvicted(t_ms=0, block=block)) for block in range(3)]),
        sentence(*[(owner, joined) for owner in range(6)]),
        sentence((0, end["length"]), (1, end["cancelled"])),
        sentence((0, end["cancelled"]), (1, end["cancelled"])),
        sentence((0, end["length"]), *left, tokens={0: 5}),
        sentence((0, end["error"])),
        sentence((3, fell)),
        sentence((3, fell), (5, fell)),
        sentence((3, timed("decode", 4, 9))),
        *(
            over(Tally(expected=30, ended=Counter(ended), tokens={0: 41}, now_ms=1e5))
            for ended in ({"eos": 30}, {"length": 29, "error": 1}, {"length": 2, "cancelled": 28})
        ),
    ]


def limits() -> list[str]:
    """How near a step came to the roofline: never clipped."""
    shares = (0.714, "memory"), (0.2, "compute"), (0.03, "memory"), (1.3, "memory"), (2.0, "compute")
    return [limit(Achieved(share, bound)) for share, bound in shares]


def hovers() -> list[str]:
    """The story of a token."""
    return [
        f"{name}, {'greedy' if greedy else 'drawn'}, {state}: {said}"
        for name in ("draft", "ngram", "synthetic")
        for greedy in (True, False)
        for state, said in sentences(name, greedy).items()
    ] + [
        f"draft, {rule}, {state}: {sentences('draft', False, rule)[state]}"
        for rule in ("block", "typical")
        for state in ("accepted", "rejected", "recovered")
    ]


def scripted() -> list[str]:
    """A whole run."""
    config = EngineConfig(speculative="draft", paged=True)
    return [frame["say"] for frame in Reducer().feed(script(config, max_tokens=16)) if frame.get("say")]


PARTS: tuple[Callable[[], list[str]], ...] = (
    reading,
    steps,
    windows,
    rarities,
    endings,
    pool,
    limits,
    hovers,
    scripted,
)


def test_the_narration_is_as_reviewed() -> None:
    parts = [f"# {part.__doc__.strip()}\n" + "".join(f"{line}\n" for line in part()) for part in PARTS]
    shown = "\n".join(parts)
    if os.environ.get("UPDATE_SNAPSHOTS"):
        SNAPSHOT.write_text(shown, "utf-8")
    assert shown == SNAPSHOT.read_text("utf-8")


def test_an_untrusted_reason_is_made_visible_and_sentences_stay_short() -> None:
    shown = SNAPSHOT.read_text("utf-8")
    assert "⟨RLO⟩" in shown
    assert "\u202e" not in shown
    assert all(len(line) < 240 for line in shown.splitlines())


def test_the_end_counts_passes_as_the_readouts_do_after_a_preemption() -> None:
    """Tokens per target pass and the closing sentence are read together."""
    config = EngineConfig(paged=True, speculative="ngram", num_blocks=12, block_size=8)
    lab = tiny_models.engine("llama", shape={"num_hidden_layers": 3})
    samplings = [SamplingParams(max_tokens=60, temperature=0.8, seed=seed, ignore_eos=True) for seed in (9, 10)]
    runs = [request.result() for request in [lab.submit("Once upon a time", config, one) for one in samplings]]
    run = next(run for run in runs if any(isinstance(event, Preempted) for event in run.events))
    passes = round(59 * run.metrics.target_passes_per_token)
    assert f" {passes} target passes" in Reducer().feed(run.events)[-1]["say"]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("speculative", DRAFTER_NAMES)
def test_every_number_a_hover_sentence_needs_is_recorded(speculative: str, temperature: float) -> None:
    frames = Reducer().feed(script(EngineConfig(speculative=speculative), temperature=temperature))
    hovers = frames[0]["head"]["sentences"]
    assert hovers.keys() == STATES.keys()
    for token in (token for frame in frames for token in frame.get("tokens", [])):
        shown = [(token["origin"], token)]
        shown += [
            ("rejected" if "p" in draft_token else "unjudged", draft_token) for draft_token in token.get("rejected", [])
        ]
        for state, numbers in shown:
            hovers[state].format(**numbers)  # raises KeyError if one is missing
