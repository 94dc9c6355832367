"""Narration of a step of many requests, in one or two sentences: the rarest first."""

from __future__ import annotations

from collections.abc import Sequence

from lab.trace.events import (
    Admitted,
    BlockCopied,
    BlockEvicted,
    BlockFreed,
    Committed,
    FellBack,
    Finished,
    Part,
    Preempted,
    RunStarted,
    StepTimed,
)
from lab.trace.recorder import BatchEvent
from lab.util.messages import counted, listed
from visualize.format_numbers import three
from visualize.pages.pool.pool_metrics import Tally
from visualize.text import visible

Said = tuple[str, bool]
"""What is said, and whether it is rare enough to stay up for a moment."""
LOST: dict[Part, str] = {
    "drafter": "drafter",
    "kv_format": "KV format",
    "kernel": "fast kernel",
    "cuda_graph": "CUDA graph",
    "compile": "compiled layers",
    "full_pool": "full pool",
}
"""What a sequence goes on without that fell back."""


def narrated(entries: Sequence[BatchEvent], tokens: dict[int, int]) -> Said:
    """Narrate a step's events. ``tokens``: how many each sequence has written so far."""
    told = [sentence for tell in (_failed, _fell_back, _preempted, _evicted) if (sentence := tell(entries))]
    rare = bool(told)
    told += [sentence for sentence in (_ended(entries, tokens), _admitted(entries), _copied(entries)) if sentence]
    return " ".join(told[:2]) or _arrived(entries) or _passed(entries), rare


def over(tally: Tally) -> str:
    """The end of the run; early if not all that were expected have finished or failed."""
    total, sequences = sum(tally.tokens.values()), counted(tally.expected, "request")
    rate = f" ({three(1000 * total / tally.ms)} tok/s)" if tally.ms > 0 else ""
    if tally.finished >= tally.expected:
        what = f"Done: {sequences}"
    else:
        early = "Ended early" if tally.finished + tally.failed < tally.expected else "Done"
        failed = f", {tally.failed} failed" if tally.failed else ""
        what = f"{early}: {tally.finished} of {sequences} finished{failed}"
    return f"{what}, {counted(total, 'token')} in {tally.ms / 1000:.2f} s{rate}."


def _failed(entries: Sequence[BatchEvent]) -> str:
    failed = {entry.owner: entry.event for entry in entries if _is_error(entry)}
    if not failed:
        return ""
    return f"{_names(failed)} failed. {visible(next(iter(failed.values())).message)}"


def _fell_back(entries: Sequence[BatchEvent]) -> str:
    fell = {entry.owner: entry.event for entry in entries if isinstance(entry.event, FellBack)}
    if not fell:
        return ""
    event = next(iter(fell.values()))
    their = "their" if len(fell) > 1 else "its"
    return f"{_names(fell)} {_goes(fell)} on without {their} {LOST[event.part]}. {visible(event.reason)}"


def _preempted(entries: Sequence[BatchEvent]) -> str:
    who = _owners(entries, Preempted)
    if not who:
        return ""
    giving_up: set[int] = set()
    given_up: set[int] = set()  # blocks
    free: set[int] = set()  # those of them that no other sequence has
    for owner, event in ((entry.owner, entry.event) for entry in entries):
        if isinstance(event, Preempted):
            giving_up.add(owner)
        elif isinstance(event, BlockFreed) and owner in giving_up:
            given_up.add(event.block)
            free |= set() if event.references else {event.block}
    their, they = ("their", "they wait") if len(who) > 1 else ("its", "it waits")
    if any(entry.event.cause == "memory" for entry in entries if isinstance(entry.event, Preempted)):
        became = "a step ran out of memory, so fewer run at once"
        return f"{_names(who)} preempted: {became}; {they} at the front of the queue."
    blocks, kept = f"{their} {counted(len(given_up), 'block')}", len(given_up - free)
    if not kept:
        became = f"{blocks} freed"
    elif not free:
        became = f"others still hold {blocks}"
    else:
        became = f"{len(free)} of {blocks} freed, others still hold {kept}"
    return f"{_names(who)} preempted: {became}; {they} at the front of the queue."


def _evicted(entries: Sequence[BatchEvent]) -> str:
    evicted = [entry.owner for entry in entries if isinstance(entry.event, BlockEvicted)]
    if not evicted:
        return ""
    was, who = "was" if len(evicted) == 1 else "were", _names(dict.fromkeys(evicted), False)
    return f"{counted(len(evicted), 'cached block')} {was} evicted to make room for {who}."


def _ended(entries: Sequence[BatchEvent], tokens: dict[int, int]) -> str:
    ended = [e for e in entries if isinstance(e.event, Finished) and not _is_error(e)]
    if not ended:
        return ""
    stopped = dict.fromkeys(entry.owner for entry in ended if entry.event.reason == "cancelled")
    finished = dict.fromkeys(entry.owner for entry in ended if entry.owner not in stopped)
    if stopped:
        end = f"{_names(stopped)} {'were' if len(stopped) > 1 else 'was'} stopped."
        return f"{_names(finished)} finished. {end}" if finished else end
    if len(finished) > 1:
        return f"{_names(finished)} finished."
    cached = sum(isinstance(e.event, BlockFreed) and e.event.cached for e in entries if e.owner == ended[0].owner)
    left = f" and left {counted(cached, 'block')} cached" if cached else ""
    return f"{_names(finished)} finished with {counted(tokens[ended[0].owner], 'token')}{left}."


def _admitted(entries: Sequence[BatchEvent]) -> str:
    joined = {entry.owner: entry.event for entry in entries if isinstance(entry.event, Admitted)}
    if not joined:
        return ""
    found = sum(event.cached_tokens for event in joined.values())
    was = "was" if len(joined) == 1 else "were"
    hit = f": {counted(found, 'token')} found in the prefix cache" if found else ""
    return f"{_names(joined)} {was} admitted{hit}."


def _copied(entries: Sequence[BatchEvent]) -> str:
    sources = [entry.event.source for entry in entries if isinstance(entry.event, BlockCopied)]
    if not sources:
        return ""
    blocks = len(set(sources))
    what, it = ("A shared block was", "it") if blocks == 1 else (f"{blocks} shared blocks were", "one")
    return f"{what} copied {counted(len(sources), 'time')} before {it} was written to: copy on write."


def _arrived(entries: Sequence[BatchEvent]) -> str:
    who = _owners(entries, RunStarted)
    return f"{_names(who)} arrived and {'wait' if len(who) > 1 else 'waits'}. {_passed(entries)}".strip() if who else ""


def _passed(entries: Sequence[BatchEvent]) -> str:
    timed = next((entry.event for entry in entries if isinstance(entry.event, StepTimed)), None)
    if timed is None:
        return ""
    made = sum(len(entry.event.token_ids) for entry in entries if isinstance(entry.event, Committed))
    return (
        f"Step: batch of {timed.batch_sequences}, {counted(timed.batch_tokens, 'token')} computed, {made} generated, "
        f"{timed.total_ms:.1f} ms."
    )


def _owners(entries: Sequence[BatchEvent], kind: type) -> dict[int, None]:
    return dict.fromkeys(entry.owner for entry in entries if isinstance(entry.event, kind))


def _is_error(entry: BatchEvent) -> bool:
    return isinstance(entry.event, Finished) and entry.event.reason == "error"


def _names(owners: dict[int, object], capital: bool = True) -> str:
    """Sequences by number: up to four of them, else the first three and how many more."""
    numbers = [str(owner) for owner in owners]
    word = "request" if len(numbers) == 1 else "requests"
    word = word.capitalize() if capital else word
    if len(numbers) > 4:
        return f"{word} {', '.join(numbers[:3])} and {len(numbers) - 3} more"
    return f"{word} {listed(numbers)}"


def _goes(owners: dict[int, object]) -> str:
    return "goes" if len(owners) == 1 else "go"
