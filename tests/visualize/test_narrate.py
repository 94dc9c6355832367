"""Every step is narrated briefly and correctly."""

from __future__ import annotations

import re
from dataclasses import asdict, replace
from typing import Any

import pytest

from lab.config import EngineConfig, SamplingParams
from lab.engine.adaptive_window import PROBE_EVERY, StepCosts
from lab.trace.events import (
    Admitted,
    BlockEvicted,
    Bonus,
    CacheDropped,
    FellBack,
    Finished,
    Judged,
    Preempted,
    Proposed,
    Recovered,
    StepTimed,
    WindowChanged,
)
from lab.trace.metrics import measure
from lab.trace.roofline import Achieved
from tests import tiny_models
from tests.visualize.conftest import script
from tests.visualize.picture import Picture
from visualize.reduce.frames import Reducer
from visualize.reduce.narration import Narrator, limit
from visualize.states import DRAFTERS, STATES, sentences


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


def prefill(told: Narrator, tokens: int, *pieces: str) -> str:
    return told.step(timed(tokens=tokens), [], [], None, pieces, [])


def a_round(told: Narrator, *rare: Any, kept: int = 1) -> str:
    """Round 7, with two guesses."""
    proposals = [
        Proposed(t_ms=0, step=7, position=i, token_id=i, text=text, q=1.0) for i, text in enumerate([" a", " b"])
    ]
    verdicts = [
        Judged(t_ms=0, step=7, position=i, token_id=i, p=0.4, q=1.0, u=None, accepted=i < kept)
        for i in range(min(kept + 1, 2))
    ]
    own = (Bonus if kept == 2 else Recovered)(t_ms=0, step=7, position=kept, token_id=9, text=" c", p=0.6)
    return told.step(timed("verify", 3, 7), proposals, verdicts, own, [], rare)


def test_an_admission_tells_what_was_found_in_the_cache() -> None:
    hit = "Found 48 of the prompt's 61 tokens in the cache: 3 blocks, nothing to compute for them."
    assert narrator(paged=True, enable_prefix_caching=True).admitted(admitted(48)) == hit
    assert narrator(paged=True, enable_prefix_caching=True).admitted(admitted()).startswith("None of the prompt")
    short = narrator(paged=True, enable_prefix_caching=True, block_size=64).admitted(admitted())
    assert short == "The prompt's 61 tokens do not fill a block of 64: none of it can be shared."
    exact = narrator(16, paged=True, enable_prefix_caching=True).admitted(admitted())
    assert exact.startswith("The prompt fills a block of 16, which longer prompts can share")
    one = narrator(1, paged=True, enable_prefix_caching=True).admitted(admitted())
    assert one == "The prompt's 1 token does not fill a block of 16: none of it can be shared."
    hit = "Found 1 of the prompt's 2 tokens in the cache: 1 block, nothing to compute for it."
    assert narrator(2, paged=True, enable_prefix_caching=True, block_size=1).admitted(admitted(1)) == hit
    assert narrator().admitted(admitted(running=3)) == "Admitted: 3 sequences share the pool and every pass."
    assert narrator().admitted(admitted()) == ""


def test_a_prefill_may_be_whole_the_uncached_rest_or_in_chunks() -> None:
    assert (
        prefill(narrator(), 61, " x") == "Prefill: the target read the prompt's 61 tokens in one pass and chose “ x”."
    )
    told = narrator()
    told.admitted(admitted(48))
    assert (
        prefill(told, 13, " x") == "Prefill: the target read the 13 tokens that were not in the cache and chose “ x”."
    )
    told = narrator()
    told.admitted(admitted(16))
    assert prefill(told, 32) == "Prefill: the target read 32 tokens more, 48 of the prompt's 61 tokens are known."
    assert prefill(told, 13, " x").startswith(
        "Prefill: the target read 13 tokens more, 61 of the prompt's 61 tokens are"
    )


@pytest.mark.parametrize(
    ("tokens", "read"),
    [
        (1200, "all 1,200 tokens (1,199 of them again)"),
        (24, "all 24 tokens (23 of them again)"),
        (3, "all 3 tokens (2 of them again)"),
        (2, "both tokens (one of them again)"),
    ],
)
def test_without_a_cache_all_but_the_newest_token_are_read_again(tokens: int, read: str) -> None:
    said = narrator(kv_cache=False).step(timed("decode", tokens, 1), [], [], None, [" x"], [])
    assert said == f"Pass 1: without a cache the target read {read} and chose “ x”."


def test_a_draft_that_reads_the_prompt_is_mentioned() -> None:
    read = replace(timed(), draft_flops=10)
    for drafter, told in (("draft", True), ("early_exit", False), ("off", False)):
        said = narrator(speculative=drafter).step(read, [], [], None, [" x"], [])
        assert said.endswith("chose “ x”. The draft read them too." if told else "chose “ x”.")
    assert not prefill(narrator(speculative="draft"), 61, " x").endswith("too.")
    one = narrator(1, speculative="draft").step(replace(read, target_tokens=1), [], [], None, [" x"], [])
    assert one == "Prefill: the target read the prompt's 1 token in one pass and chose “ x”. The draft read it too."


def test_preemption_and_readmission_are_narrated() -> None:
    told = narrator()
    told.admitted(admitted())
    prefill(told, 61, " x")
    assert told.preempted(Preempted(t_ms=0, tokens=61)) == (
        "Preempted: the pool ran out of blocks, so this run gave its own back and waits; 61 tokens will be computed "
        "again."
    )
    fewer = "Preempted: a step ran out of memory, so fewer runs are computed at once and this one waits"
    short = Preempted(t_ms=0, tokens=61, cause="memory")
    assert narrator().preempted(short) == f"{fewer}; 61 tokens will be computed again."
    assert narrator(kv_cache=False).preempted(replace(short, tokens=0)) == f"{fewer}."
    newest = "Admitted again. All of the text's 62 tokens are computed, 61 of them again."
    assert told.admitted(admitted()) == newest, "the newest token was chosen, and not yet read"
    assert prefill(told, 62, " x") == "Prefill: the target read the text's 62 tokens in one pass and chose “ x”."
    hit = "Admitted again. Found 48 of the text's 63 tokens in the cache: 3 blocks, nothing to compute for them."
    assert told.admitted(admitted(48)) == hit


def test_the_end_counts_passes_as_the_readouts_do_after_a_preemption() -> None:
    """Tokens a pass and the closing sentence are read together."""
    config = EngineConfig(paged=True, speculative="ngram", num_blocks=12, block_size=8)
    lab = tiny_models.engine("llama", shape={"num_hidden_layers": 3})
    samplings = [SamplingParams(max_tokens=60, temperature=0.8, seed=seed, ignore_eos=True) for seed in (9, 10)]
    runs = [request.result() for request in [lab.submit("Once upon a time", config, one) for one in samplings]]
    run = next(run for run in runs if any(isinstance(event, Preempted) for event in run.events))
    passes = round(59 * run.metrics.target_passes_per_token)
    said = Reducer().feed(run.events)[-1]["say"]
    assert f"Those 59 took {passes} passes, which kept" in said


def test_a_token_whose_text_is_held_back_is_not_quoted() -> None:
    """Until it is clear whether a stop string begins there, a token adds no text."""
    assert prefill(narrator(), 61, "").endswith("the target read the prompt's 61 tokens in one pass.")
    said = narrator().step(timed("decode", 1, 3), [], [], None, [""], [])
    assert said == "Pass 3: the target read one new token, found the others in the cache."


@pytest.mark.parametrize("speculative", [name for name in DRAFTERS if name != "off"])
def test_the_drafter_is_named(speculative: str) -> None:
    said = a_round(narrator(speculative=speculative))
    why = "wrong on purpose" if speculative == "synthetic" else "p 0.4, not its likeliest"  # nothing was drawn
    assert said == (
        f"Round 7: {DRAFTERS[speculative].name} proposed 2 tokens, “ a b”. "
        f"The target accepted 1, rejected “ b” ({why}) and put “ c” in its place."
    )
    assert f"The target rejected the first, “ a” ({why})" in a_round(narrator(speculative=speculative), kept=0)
    assert a_round(narrator(speculative=speculative), kept=2).endswith("accepted both and added “ c” as a bonus.")


def test_a_rejection_is_told_with_the_numbers_that_decided_it() -> None:
    guesses = [
        Proposed(t_ms=0, step=7, position=i, token_id=i, text=text, q=0.31)
        for i, text in enumerate([" the", " old", " forest", " was"])
    ]
    verdicts = [
        Judged(t_ms=0, step=7, position=i, token_id=i, p=p, q=0.31, u=0.4409, accepted=i < 2)
        for i, p in enumerate([0.9, 0.8, 0.0213])
    ]
    own = Recovered(t_ms=0, step=7, position=2, token_id=9, text=" castle", p=0.6)
    told = narrator(speculative="draft")
    assert told.step(timed("verify", 5, 7), guesses, verdicts, own, [" the", " old", " castle"], []) == (
        "Round 7: the draft model proposed 4 tokens, “ the old forest was”. The target accepted 2, rejected “ forest” "
        "(p 0.021, q 0.31, u 0.44) and put “ castle” in its place."
    )
    alone = Recovered(t_ms=0, step=8, position=0, token_id=9, text=" a", p=0.6)
    said = told.step(timed("verify", 2, 8), guesses[2:3], verdicts[2:], alone, [" a"], [])
    assert "proposed “ forest”. The target rejected it (p 0.021, q 0.31, u 0.44) and put “ a”" in said
    close = [replace(verdicts[2], p=0.45661, q=0.54083, u=0.84433)]
    said = told.step(timed("verify", 2, 8), guesses[2:3], close, alone, [" a"], [])
    assert "rejected it (p 0.45661, q 0.54083, u 0.84433) and" in said, "0.84 times 0.54 would be below 0.46"


@pytest.mark.parametrize(
    ("pieces", "ended", "kept"),
    [
        ([" a"], "before the last 2 of them", "a token each, the last none; 2 kept after the text's end."),
        ([" a"] * 2, "before the last of them", "a token each, the last none; 1 kept after the text's end."),
        ([" a"] * 3, "there", "a token each, the last none."),
    ],
)
def test_a_text_that_ends_among_a_rounds_guesses_tells_of_those_after_it(
    pieces: list[str], ended: str, kept: str
) -> None:
    """They were accepted: the chart and the readouts show and count them."""
    told = narrator(speculative="draft")
    prefill(told, 61, " x")
    a_round(told, kept=2)
    guesses = [Proposed(t_ms=0, step=8, position=i, token_id=i, text=" a", q=1.0) for i in range(4)]
    verdicts = [Judged(t_ms=0, step=8, position=i, token_id=i, p=0.4, q=1.0, u=None, accepted=i < 3) for i in range(4)]
    said = told.step(timed("verify", 5, 8), guesses, verdicts, None, pieces, [])
    assert said.endswith(f"The target accepted 3, and the text ended {ended}.")
    end = told.ended(Finished(t_ms=9, reason="stop", text="", message=""), measure([]), 4 + len(pieces), 0)
    assert end.endswith(f"took 2 passes, which kept 5 of 6 guesses and added {kept}")


def test_what_one_pass_gave_is_not_told_of_each() -> None:
    told = narrator(speculative="draft")
    prefill(told, 61, " x")
    a_round(told, kept=2)
    end = told.ended(Finished(t_ms=9, reason="length", text="", message=""), measure([]), 4, 0)
    assert "Those 3 took 1 pass, which kept 2 of 2 guesses and added a token." in end


def test_a_window_change_is_told_with_its_reasons() -> None:
    told = narrator(speculative="draft", adaptive_window=True)
    changes = [
        WindowChanged(t_ms=0, step=8, gamma=gamma, acceptance=0.45, draft_ms=0.9, verify_ms=6.1) for gamma in (2, 0)
    ]
    why = "45% of judged guesses are expected to be accepted, a guess takes 0.9 ms, a pass 6.1 ms."
    assert a_round(told, changes[0]) == f"Round 7: 1 of 2 accepted. The window went from 4 to 2: {why}"
    assert a_round(told, changes[1]) == f"Round 7: 1 of 2 accepted. The window went from 2 to 0: {why}"


def test_a_trial_window_is_called_a_trial_without_made_up_times() -> None:
    told = narrator(speculative="draft", adaptive_window=True)
    tries = WindowChanged(t_ms=0, step=8, gamma=0, acceptance=0.79, draft_ms=0.2, verify_ms=None)
    said = "The window goes from 4 to 0 as a trial, to measure what a plain pass costs: that is not yet known."
    assert a_round(told, tries, kept=2) == f"Round 7: 2 of 2 accepted. {said}"
    smaller = replace(tries, gamma=1)
    assert "4 to 1 as a trial, to measure what a pass over fewer tokens costs" in a_round(narrator(), smaller)
    again = replace(tries, gamma=2, draft_ms=None, verify_ms=6.1)
    said = "The window goes from 0 to 2 as a trial, to measure what a guess costs: that is not yet known."
    assert plain_pass(told, 9, again).endswith(said)


def plain_pass(told: Narrator, step: int, *rare: Any) -> str:
    return told.step(timed("decode", 1, step), [], [], None, [" x"], rare)


def test_a_pass_with_a_window_of_0_says_why_and_for_how_long() -> None:
    told = narrator(speculative="draft", adaptive_window=True)
    none = WindowChanged(t_ms=0, step=8, gamma=0, acceptance=0.79, draft_ms=0.2, verify_ms=None)
    a_round(told, none)
    assert plain_pass(told, 8) == (
        "Pass 8 chose “ x”. No guesses: to measure what a plain pass costs; guessing is tried again within 31 passes."
    )
    measured = replace(none, gamma=3, verify_ms=0.3)
    assert plain_pass(told, 9, measured).startswith("Pass 9. The window went from 0 to 3: 79% of judged guesses")
    assert plain_pass(told, 10).startswith("Pass 10: the target read one new token"), "the drafter proposed nothing"
    a_round(told, replace(measured, gamma=0))
    why = "a round of them would cost more than it gains"
    assert plain_pass(told, 11) == f"Pass 11 chose “ x”. No guesses: {why}; guessing is tried again within 28 passes."
    for step in range(12, 38):
        plain_pass(told, step)
    assert plain_pass(told, 38).endswith("guessing is tried again after this pass.")
    failure = FellBack(t_ms=0, part="drafter", reason="Its output is not finite.")
    plain_pass(told, 39, failure)
    assert plain_pass(told, 40).startswith("Pass 40: the target read one new token")


def test_a_trial_of_guesses_is_not_told_as_if_it_promised_to_pay() -> None:
    told = narrator(speculative="draft", adaptive_window=True)
    none = WindowChanged(t_ms=0, step=8, gamma=0, acceptance=0.2, draft_ms=0.2, verify_ms=0.3)
    a_round(told, none)
    for step in range(8, PROBE_EVERY + 6):
        plain_pass(told, step)
    assert plain_pass(told, PROBE_EVERY + 6, replace(none, gamma=1)) == (
        "Pass 38. The window goes from 0 to 1 as a trial: without guesses nothing shows how many would be accepted."
    )
    assert plain_pass(told, 39).startswith("Pass 39: the target read one new token"), "the drafter proposed nothing"
    a_round(told, none)
    assert "The window went from 0 to 1: 20% of" in plain_pass(told, 41, replace(none, gamma=1)), "it promises to"


def test_a_window_of_0_is_left_when_the_narration_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Real rounds of the engine, all too costly to pay off: it leaves 0 only for trials."""
    costly = {0: 1.0}
    monkeypatch.setattr(StepCosts, "round_ms", lambda self, gamma, *_: costly.get(gamma, 1e6))
    config = EngineConfig(speculative="draft", adaptive_window=True)
    lab = tiny_models.engine("llama", "good", shape={"num_hidden_layers": 3})
    run = lab.generate("The king", config, SamplingParams(max_tokens=90, seed=1))
    guessed = {event.step for event in run.events if isinstance(event, Proposed)}
    promised = {
        frame["step"] + int(found[1])
        for frame in Reducer().feed(run.events)
        if (found := re.search(r"within (\d+) passes", frame.get("say", "")))
    }
    assert len(promised) == 2
    assert promised & set(range(max(guessed) + 1)) <= guessed
    assert promised & guessed


def test_the_rarest_event_is_told_and_the_sentence_stays_short() -> None:
    evicted = [BlockEvicted(t_ms=0, block=block) for block in (3, 4)]
    window = WindowChanged(t_ms=0, step=8, gamma=2, acceptance=0.4, draft_ms=1, verify_ms=6)
    failure = FellBack(t_ms=0, part="drafter", reason="Its output is not finite.")
    told = narrator(speculative="draft")
    assert a_round(told, *evicted) == "Round 7: 1 of 2 accepted. Evicted 2 cached blocks to make room."
    assert "window" in a_round(told, *evicted, window)
    said = a_round(told, *evicted, window, failure)
    assert said.endswith("Fell back: the draft model failed, the target goes on alone. Its output is not finite.")
    assert len(said) < 130
    assert told.notice == "fell back: the draft model failed"


@pytest.mark.parametrize(
    ("part", "lost"),
    [
        ("kv_format", "INT4 storage failed"),
        ("kernel", "the fast kernel failed"),
        ("full_pool", "the full pool failed"),
    ],
)
def test_a_fallback_is_named_and_its_notice_stays(part: str, lost: str) -> None:
    told = narrator(kv_dtype="int4")
    said = told.step(timed("decode", 1, 3), [], [], None, [" x"], [FellBack(t_ms=0, part=part, reason="<b>\u202e")])
    assert lost in said
    assert "⟨RLO⟩" in said
    assert told.notice == f"fell back: {lost}"


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (Achieved(0.714, "memory"), "memory-bound, 71% of the limit"),
        (Achieved(0.5, "compute"), "compute-bound, 50% of the limit"),
        (Achieved(0.2, "compute"), "20% of the compute limit"),
        (Achieved(0.03, "memory"), "3% of the memory limit"),
        (Achieved(1.3, "memory"), "memory-bound, 130% of the limit (a cache helps)"),
        (Achieved(2.0, "compute"), "compute-bound, 200% of the limit (another kernel)"),
    ],
)
def test_the_share_of_the_limit_is_told_and_never_clipped(found: Achieved, said: str) -> None:
    assert limit(found) == said


def test_a_dropped_cache_is_narrated() -> None:
    dropped = CacheDropped(t_ms=0, reason="The weights changed.")
    said = narrator().step(timed(), [], [], None, [" x"], [dropped])
    assert said == "Prefill. Everything cached was dropped: The weights changed."


def test_a_synthetic_run_says_so_from_the_first_frame() -> None:
    frames = Reducer().feed(script(EngineConfig(speculative="synthetic"), max_tokens=4))
    assert frames[0]["notice"] == "synthetic: proposals cost nothing here"
    assert sum("notice" in frame for frame in frames) == 1
    shown = Picture()
    for frame in frames:
        shown.apply(frame)
    assert shown.notice == "synthetic: proposals cost nothing here"
    assert "notice" not in Reducer().feed(script(EngineConfig(speculative="draft"), max_tokens=4))[0]


@pytest.mark.parametrize("greedy", [False, True])
@pytest.mark.parametrize("speculative", DRAFTERS)
def test_hover_sentences_fit_the_drafter_and_the_sampling(speculative: str, greedy: bool) -> None:
    said = sentences(speculative, greedy)
    assert said.keys() == STATES.keys()
    drawn = not greedy and speculative != "synthetic"
    assert ("{u}" in said["accepted"]) == ("{u}" in said["rejected"]) == drawn
    assert ("{chance}" in said["accepted"]) == (drawn and speculative != "ngram")
    assert ("p exceeds q" in said["recovered"]) == (drawn and speculative != "ngram")
    if speculative == "synthetic":
        assert "q" not in said["accepted"].replace("proposed", "").split()
        assert "target's own token" in said["accepted"]
        assert "on purpose" in said["rejected"]
    elif speculative != "off":
        assert said["accepted"].lower().startswith(DRAFTERS[speculative].name)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("speculative", DRAFTERS)
def test_every_number_a_hover_sentence_needs_is_recorded(speculative: str, temperature: float) -> None:
    frames = Reducer().feed(script(EngineConfig(speculative=speculative), temperature=temperature))
    said = frames[0]["head"]["sentences"]
    for token in (token for frame in frames for token in frame.get("tokens", [])):
        told = [(token["origin"], token)]
        told += [("rejected" if "p" in guess else "unjudged", guess) for guess in token.get("rejected", [])]
        for state, numbers in told:
            said[state].format(**numbers)  # raises KeyError if one is missing
