"""Narration of a step of many requests, in one or two sentences: the rarest first."""

from collections.abc import Iterable, Sequence

from lab.trace.events import (
    Admitted,
    BlockCopied,
    BlockEvicted,
    BlockFreed,
    Committed,
    FellBack,
    Finished,
    Preempted,
    RunStarted,
    StepTimed,
)
from lab.trace.recorder import BatchEvent
from lab.util.messages import counted, listed
from visualize.format_numbers import three
from visualize.pages.pool.pool_metrics import Tally
from visualize.reduce.narration import fallback
from visualize.text import visible


class PoolStep:
    """The events of a step, by type: each with the number of its sequence."""

    def __init__(self, entries: Sequence[BatchEvent]) -> None:
        self._entries = entries

    def of(self, kind: type) -> list[tuple[int, object]]:
        return [(entry.owner, entry.event) for entry in self._entries if isinstance(entry.event, kind)]

    def rare(self) -> list[str]:
        """The events that stay up for a moment."""
        return [said for said in (self._failed(), self._fell_back(), self._preempted(), self._evicted()) if said]

    def usual(self, tokens: dict[int, int]) -> list[str]:
        return [said for said in (self._ended(tokens), self._admitted(), self._copied()) if said]

    def _failed(self) -> str:
        failed = [(owner, event) for owner, event in self.of(Finished) if event.reason == "error"]
        return f"{_names(failed)} failed. {visible(failed[0][1].message)}" if failed else ""

    def _fell_back(self) -> str:
        fell = self.of(FellBack)
        return f"{_names(fell)} fell back: {fallback(fell[0][1])}" if fell else ""

    def _preempted(self) -> str:
        gone = self.of(Preempted)
        if not gone:
            return ""
        waits = "they wait at the front of the queue" if len(gone) > 1 else "it waits at the front of the queue"
        if any(event.cause == "memory" for _, event in gone):
            return f"{_names(gone)} preempted: a step ran out of memory, so fewer run at once; {waits}."
        giving_up: set[int] = set()
        freed: dict[int, bool] = {}  # block -> whether others still hold it
        for owner, event in ((entry.owner, entry.event) for entry in self._entries):
            if isinstance(event, Preempted):
                giving_up.add(owner)
            elif isinstance(event, BlockFreed) and owner in giving_up:
                freed[event.block] = bool(event.references)
        blocks, kept = f"{'their' if len(gone) > 1 else 'its'} {counted(len(freed), 'block')}", sum(freed.values())
        became = f"{blocks} freed" if not kept else f"{len(freed) - kept} of {blocks} freed, others still hold {kept}"
        if kept and kept == len(freed):
            became = f"others still hold {blocks}"
        return f"{_names(gone)} preempted: {became}; {waits}."

    def _evicted(self) -> str:
        evicted = self.of(BlockEvicted)
        was = f"{counted(len(evicted), 'cached block')} {_were(evicted)} evicted to make room for"
        return f"{was} {_names(evicted, capital=False)}." if evicted else ""

    def _ended(self, tokens: dict[int, int]) -> str:
        ended = [(owner, event.reason) for owner, event in self.of(Finished) if event.reason != "error"]
        stopped = [one for one in ended if one[1] == "cancelled"]
        finished = [one for one in ended if one not in stopped]
        said = [f"{_names(finished)} finished."] if finished else []
        said += [f"{_names(stopped)} {_were(stopped)} stopped."] if stopped else []
        if len(finished) == 1 and not stopped:
            ((owner, _),) = finished
            cached = sum(event.cached for of, event in self.of(BlockFreed) if of == owner)
            left = f" and left {counted(cached, 'block')} cached" if cached else ""
            return f"{_names(finished)} finished with {counted(tokens[owner], 'token')}{left}."
        return " ".join(said)

    def _admitted(self) -> str:
        joined = self.of(Admitted)
        found = sum(event.cached_tokens for _, event in joined)
        hit = f": {counted(found, 'token')} found in the prefix cache" if found else ""
        return f"{_names(joined)} {_were(joined)} admitted{hit}." if joined else ""

    def _copied(self) -> str:
        sources = [event.source for _, event in self.of(BlockCopied)]
        if not sources:
            return ""
        blocks = len(set(sources))
        what, it = ("A shared block was", "it") if blocks == 1 else (f"{blocks} shared blocks were", "one")
        return f"{what} copied {counted(len(sources), 'time')} before {it} was written to: copy on write."

    def passed(self) -> str:
        arrived, timed = self.of(RunStarted), self.of(StepTimed)
        said = [f"{_names(arrived)} arrived and {'wait' if len(arrived) > 1 else 'waits'}."] if arrived else []
        if timed:
            step, made = timed[0][1], sum(len(event.token_ids) for _, event in self.of(Committed))
            said.append(
                f"Step: batch of {step.batch_sequences}, {counted(step.batch_tokens, 'token')} computed, "
                f"{made} generated, {step.total_ms:.1f} ms."
            )
        return " ".join(said)


def narrated(entries: Sequence[BatchEvent], tokens: dict[int, int]) -> tuple[str, bool]:
    """A step in words, and whether they are rare enough to stay up for a moment. ``tokens``: how many each sequence has
    written so far."""
    step = PoolStep(entries)
    rare = step.rare()
    return " ".join([*rare, *step.usual(tokens)][:2]) or step.passed(), bool(rare)


def over(tally: Tally) -> str:
    """The end of the run; early if not all that were expected have finished or failed."""
    total, failed, sequences = sum(tally.tokens.values()), tally.ended["error"], counted(tally.expected, "request")
    rate = f" ({three(1000 * total / tally.ms)} tok/s)" if tally.ms > 0 else ""
    what = f"Done: {sequences}"
    if tally.finished < tally.expected:
        early = "Ended early" if tally.finished + failed < tally.expected else "Done"
        what = f"{early}: {tally.finished} of {sequences} finished{f', {failed} failed' if failed else ''}"
    return f"{what}, {counted(total, 'token')} in {tally.ms / 1000:.2f} s{rate}."


def _were(several: Sequence[object]) -> str:
    return "were" if len(several) > 1 else "was"


def _names(events: Iterable[tuple[int, object]], *, capital: bool = True) -> str:
    """The events' sequences by number: up to four of them, else the first three and how many more."""
    numbers = [str(owner) for owner in dict.fromkeys(owner for owner, _ in events)]
    word = f"{'R' if capital else 'r'}equest{'s' * (len(numbers) > 1)}"
    if len(numbers) > 4:
        return f"{word} {', '.join(numbers[:3])} and {len(numbers) - 3} more"
    return f"{word} {listed(numbers)}"
