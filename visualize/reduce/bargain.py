"""Whether guessing paid off, in words: passes and what each gave, which add up to the tokens of the text."""

from __future__ import annotations

from dataclasses import dataclass

from lab.util.messages import counted


@dataclass
class Bargain:
    """Counts of a run, as ``lab.trace.metrics`` has them.

    Attributes:
        passes: all but those that only read the text.
        rounds: passes with guesses.
        guesses, kept: proposed and accepted.
        cut: whether the text ended within the latest round's guesses.
        beyond: accepted guesses after that end.
    """

    passes: int = 0
    rounds: int = 0
    guesses: int = 0
    kept: int = 0
    cut: bool = False
    beyond: int = 0

    def round(self, guesses: int, kept: int, committed: int, *, cut: bool) -> None:
        """Count a round with so many guesses, of which so many were kept, that added ``committed`` tokens to the text.
        ``cut``: the text ended within its guesses."""
        self.rounds += 1
        self.guesses += guesses
        self.kept += kept
        self.cut, self.beyond = cut, kept - committed if cut else 0

    def sentence(self, generated: int) -> str:
        """After ``generated`` tokens. Empty without a round."""
        if not self.rounds or generated < 2:
            return ""
        passes = counted(self.passes, "pass")
        those = f"Those {generated - 1}" if generated > 2 else "The other"
        kept = f"kept {self.kept or 'none'} of {counted(self.guesses, 'guess')}"
        if self.guesses == 1:
            kept = f"{'kept' if self.kept else 'did not keep'} the one guess"
        if self.passes >= generated - 1:
            return f" {those} took {passes}, which {kept}: so guessing saved no pass."
        kept += "" if self.rounds == self.passes else f" ({self.rounds} had any)"
        if self.passes == 1:
            added = "no token" if self.cut else "a token"
        else:
            added = "a token each, the last none" if self.cut else "a token each"
        added += f"; {self.beyond} kept after the text's end" if self.beyond else ""
        return f" {those} took {passes}, which {kept} and added {added}."
