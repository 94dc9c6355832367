"""Drafters, which propose tokens for the target to verify: four kinds, one interface."""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from lab.backends.torch.sampler import sample
from lab.backends.torch.torch_backend import NewTokens, forward
from lab.config import SamplingParams
from lab.engine.adaptive_window import TheilSen
from lab.engine.pass_cost import PassWork, Span
from lab.engine.sequence import PROPOSE, Sequence
from lab.kv_cache.formats import KVStorage
from lab.models.language_model import LanguageModel
from lab.trace.roofline import PassCost
from lab.util.device_copy import joined, on_device, several_on_device


class Proposals(NamedTuple):
    """One sequence's proposals for a round, on the device.

    Attributes:
        tokens: [g] int64, g > 0.
        q: [g, vocabulary] float32, the distribution each was drawn from; of a greedy request, the one it is the
            likeliest of; of prompt lookup, 1 on each. None: there is none, and they are kept if they match the
            target's own tokens.
    """

    tokens: torch.Tensor
    q: torch.Tensor | None


class Drafter(ABC):
    """Proposes tokens for all of its sequences in a step at once.

    Anything its methods raise is caught: its sequences then go on without a drafter.

    Attributes:
        times: milliseconds that a step's proposals took, by the most that were proposed for one sequence.
    """

    def __init__(self) -> None:
        self.times = TheilSen()

    @abstractmethod
    def propose(self, sequences: list[Sequence], windows: list[int]) -> list[Proposals | None]:
        """At most ``windows[i]`` tokens to follow ``sequences[i]``; None where it has nothing to propose."""

    def work(self, sequences: list[Sequence], windows: list[int]) -> PassCost:
        """What ``propose`` is about to move and compute, over all of its model's passes."""
        return PassCost()

    def is_behind(self, sequences: list[Sequence]) -> bool:
        """Whether ``propose`` is about to read more than in a usual round, because a text grew without it."""
        return False

    def read(self, sequences: list[Sequence], stops: list[int]) -> PassCost:
        """Read the first ``stops[i]`` tokens of ``sequences[i]``, which is as far as the target gets in this step: so
        a prompt comes in chunks here too. Returns what it moved and computed."""
        return PassCost()


class ModelDrafter(Drafter):
    """A model that decodes ahead on its own, all sequences in one forward pass.

    Either a smaller model with the target's tokenizer, whose keys and values have
    the same slot numbers as the target's in a storage of their own; or the target's own first layers
    (``early_exit``: Elhoushi et al., 2404.16710, but without their training, and without reusing these
    layers' work when verifying), which read what the target stored and write what it will overwrite.
    """

    def __init__(self, model: LanguageModel, storage: KVStorage | None, *, early_exit: bool = False) -> None:
        super().__init__()
        self._model = model
        self._storage = storage
        self._early_exit = early_exit
        self._passes = PassWork(model, storage)

    def propose(self, sequences: list[Sequence], windows: list[int]) -> list[Proposals | None]:
        """The first forward pass also reads the tokens the model has not seen yet, or without a cache all of them.

        The last proposal is not fed back: if it is accepted, the next round begins by reading it.
        """
        device, samplings = self._model.device, [sequence.sampling for sequence in sequences]
        starts = [self._read(sequence) for sequence in sequences]
        unread = several_on_device([s.tokens[start:] for s, start in zip(sequences, starts, strict=True)], device)
        draws = [s.draws[s.generated : s.generated + w, PROPOSE] for s, w in zip(sequences, windows, strict=True)]
        batch = [
            NewTokens(new, start, sequence.table, keep=1)
            for new, start, sequence in zip(unread, starts, sequences, strict=True)
        ]
        native = self._model.native.model
        if native and self._storage:
            u = pad_sequence(draws, batch_first=True)
            ahead = native.decode_ahead(batch, self._model.layers, self._storage, windows, samplings, u)
            made = [Proposals(t[:w], q[:w]) for t, q, w in zip(*ahead, windows, strict=True)]
        else:
            greedy = all(sampling.greedy for sampling in samplings)
            u = None if greedy else on_device(joined(draws), device).split(windows)
            made = self._one_by_one(batch, windows, samplings, u)
        if not self._early_exit:
            for sequence, new, window in zip(sequences, batch, windows, strict=True):
                sequence.draft_length = new.stop + window - 1 if sequence.table else 0
        return made

    def read(self, sequences: list[Sequence], stops: list[int]) -> PassCost:
        if self._early_exit or self._storage is None:
            return PassCost()
        starts = [sequence.draft_length for sequence in sequences]
        news = [s.tokens[start:stop] for s, start, stop in zip(sequences, starts, stops, strict=True)]
        batch = [
            NewTokens(new, start, sequence.table, keep=0)
            for new, start, sequence in zip(several_on_device(news, self._model.device), starts, sequences, strict=True)
            if len(new)
        ]
        if batch:
            forward(self._model, batch, self._storage)
        for sequence, stop in zip(sequences, stops, strict=True):
            sequence.draft_length = max(sequence.draft_length, stop)
        return self._passes.of(Span(new.start, new.stop, 0) for new in batch) if batch else PassCost()

    def _one_by_one(
        self,
        batch: list[NewTokens],
        windows: list[int],
        samplings: list[SamplingParams],
        draws: tuple[torch.Tensor, ...] | None,
    ) -> list[Proposals]:
        """One forward pass per token of the longest window. ``draws``: [window] float64 for each sequence; None if all
        are greedy."""
        batch = list(batch)
        tokens: list[list[torch.Tensor]] = [[] for _ in batch]
        rows: list[list[torch.Tensor]] = [[] for _ in batch]
        native, kernels = self._model.native.model is not None, self._storage and self._storage.kernels
        for i in range(max(windows)):
            active = [k for k, window in enumerate(windows) if window > i]
            logits = forward(self._model, [batch[k] for k in active], self._storage)
            u = None if draws is None else torch.stack([draws[k][i] for k in active])
            q, chosen = sample(logits, [samplings[k] for k in active], u, native=native, kernels=kernels)
            for row, k in enumerate(active):
                token, new = chosen[row : row + 1], batch[k]
                tokens[k].append(token)
                rows[k].append(q[row])
                if new.table:
                    batch[k] = new._replace(token_ids=token, start=new.stop)
                else:
                    batch[k] = new._replace(token_ids=torch.cat([new.token_ids, token]))
        return [Proposals(torch.cat(t), torch.stack(q)) for t, q in zip(tokens, rows, strict=True)]

    def work(self, sequences: list[Sequence], windows: list[int]) -> PassCost:
        total = PassCost()
        for i in range(max(windows)):
            spans = []
            for sequence, window in zip(sequences, windows, strict=True):
                if window > i:
                    stop = len(sequence.tokens) + i
                    start = stop - 1 if i and sequence.table else self._read(sequence)
                    spans.append(Span(start, stop, keep=1))
            total += self._passes.of(spans)
        return total

    def is_behind(self, sequences: list[Sequence]) -> bool:
        # After a fully accepted round it reads two tokens: its own last proposal and the bonus token.
        return any(sequence.table and len(sequence.tokens) - self._read(sequence) > 2 for sequence in sequences)

    def _read(self, sequence: Sequence) -> int:
        """How many tokens already have this model's keys and values."""
        return sequence.computed if self._early_exit else sequence.draft_length


class PromptLookup(Drafter):
    """Proposes what followed the text's last few tokens where they occurred earlier: no model, no cost.

    Saxena, "Prompt Lookup Decoding" (2023), who takes the first occurrence followed by enough tokens (here it is the
    last); Yang et al., 2304.04487. Nothing is drawn: q is 1 on each proposal, so speculative sampling accepts it with
    probability p.
    """

    def __init__(self, shortest: int, longest: int, vocabulary: int, device: torch.device) -> None:
        super().__init__()
        self._shortest = shortest
        self._longest = longest
        self._vocabulary = vocabulary
        self._device = device
        self._texts: WeakKeyDictionary[Sequence, array[int]] = WeakKeyDictionary()

    def propose(self, sequences: list[Sequence], windows: list[int]) -> list[Proposals | None]:
        found = [
            lookup(self._text(sequence), window, self._shortest, self._longest)
            for sequence, window in zip(sequences, windows, strict=True)
        ]
        return [
            Proposals(tokens, F.one_hot(tokens, self._vocabulary).float()) if len(tokens) else None
            for tokens in several_on_device(found, self._device)
        ]

    def _text(self, sequence: Sequence) -> np.ndarray:
        """The sequence's tokens, [length] C integers. A text only grows, since rejected proposals were never in it; so
        only new tokens are copied."""
        text = self._texts.setdefault(sequence, array("i"))
        text.extend(sequence.tokens[len(text) :])
        return np.frombuffer(text, np.intc)


def lookup(text: np.ndarray, count: int, shortest: int, longest: int) -> list[int]:
    """Up to ``count`` tokens that followed an earlier occurrence of the longest suffix of ``text`` that has one.

    Of several occurrences, it is the last one that ``count`` tokens follow, or else the first. (In a text that repeats
    itself, few tokens follow the very last.)

    Args:
        text: [length] of integers, length > 0.
        shortest, longest: length of the suffix in tokens.
    """
    length, ends = 1, np.flatnonzero(text[:-1] == text[-1]) + 1  # just after each occurrence of the last token
    while length < longest and len(ends):
        longer = ends[ends > length]
        longer = longer[text[longer - length - 1] == text[-length - 1]]
        if not len(longer):
            break
        length, ends = length + 1, longer
    if length < shortest or not len(ends):
        return []
    whole = ends[ends + count <= len(text)]
    begin = whole[-1] if len(whole) else ends[0]
    return text[begin : begin + count].tolist()


class Synthetic(Drafter):
    """Not a real drafter: it knows the target's next tokens, and proposes each of them with probability ``rate``.

    ``own`` are the tokens of the same request, decoded plainly beforehand. Any other proposal is rejected and
    replaced by the target's token, so the text is the plain one whatever the rate.
    """

    def __init__(self, rate: float, own: list[int], vocabulary: int, device: torch.device) -> None:
        super().__init__()
        self._rate = rate
        self._own = own
        self._vocabulary = vocabulary
        self._device = device

    def propose(self, sequences: list[Sequence], windows: list[int]) -> list[Proposals | None]:
        said = []
        for sequence, window in zip(sequences, windows, strict=True):
            first = sequence.generated
            known = self._own[first : first + window]
            right = (sequence.draws[first : first + len(known), PROPOSE] < self._rate).tolist()
            said.append([t if told else (t + 1) % self._vocabulary for t, told in zip(known, right, strict=True)])
        return [Proposals(tokens, None) if len(tokens) else None for tokens in several_on_device(said, self._device)]
