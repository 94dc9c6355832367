"""Who proposes tokens for the target to verify."""

from __future__ import annotations

from typing import NamedTuple

import torch

from lab.decode.forward import NewTokens, forward
from lab.decode.sampling import distribution, draw
from lab.decode.sequence import Sequence
from lab.kv.storage import KVStorage
from lab.pair.models import LanguageModel


class Proposals(NamedTuple):
    """A round's proposals, on the device.

    Attributes:
        tokens: [g] int64.
        q: [g, vocabulary] float32, the distribution each was drawn from.
    """

    tokens: torch.Tensor
    q: torch.Tensor


class DraftModel:
    """A smaller model with the target's tokenizer, decoding ahead by itself.

    Its keys and values live in the same slots as the target's, in a storage of its own.
    """

    def __init__(self, model: LanguageModel, storage: KVStorage | None) -> None:
        self._model = model
        self._storage = storage

    def propose(self, sequence: Sequence, count: int) -> Proposals:
        """Decode ``count`` tokens ahead; the first pass also reads what the draft has not seen yet.

        The last proposal is not fed back: if it is accepted, the next round begins with it.
        """
        model, sampling = self._model, sequence.sampling
        start = sequence.draft_length
        unread = torch.tensor(sequence.tokens[start:], device=model.device)
        u = None if sampling.greedy else sequence.uniforms(count).to(model.device)
        tokens, rows = [], []
        for i in range(count):
            new = NewTokens(unread, start, sequence.table, keep=1)
            logits = forward(model, [new], self._storage)[0]
            q = distribution(logits, sampling)
            token = (logits.argmax(-1) if u is None else draw(q, u[i]))[None]
            tokens.append(token)
            rows.append(q)
            if sequence.table:
                start, unread = start + len(unread), token
            else:
                unread = torch.cat([unread, token])
        sequence.draft_length = start
        return Proposals(torch.cat(tokens), torch.stack(rows))
