"""The end of a step: verified tokens become part of their sequence, and every decision an event.

``Backend.verify`` decides (``lab.backends.torch.rejection_sampler``). Lesson 9, why it is lossless.
"""

from collections.abc import Callable

from lab.backends.interface import Verification
from lab.engine.sequence import Sequence
from lab.trace.events import Bonus, Committed, Distributions, Proposed, Recovered, Verified


def commit(sequence: Sequence, verified: Verification, token_text: Callable[[int], str]) -> None:
    """Add a step's tokens to the sequence and emit its events. Tokens after a stop are dropped; their verdicts are
    still emitted, since they were reached."""
    emit, step = sequence.recorder.emit, sequence.report.step
    drafted, accepted = len(verified.draft_token_ids), verified.num_accepted
    for i, (token, q) in enumerate(zip(verified.draft_token_ids, verified.q, strict=True)):
        emit(Proposed, step=step, position=i, token_id=token, text=token_text(token), q=q)
    for i in range(verified.num_judged):
        emit(
            Verified,
            step=step,
            position=i,
            token_id=verified.draft_token_ids[i],
            p=verified.p[i],
            q=verified.q[i],
            u=verified.u[i] if verified.u else None,
            accepted=i < accepted,
            **(verified.evidence[i]._asdict() if verified.evidence else {}),
        )
        if i < len(verified.distributions):
            likeliest = verified.distributions[i]
            texts = tuple(map(token_text, likeliest.token_ids))
            fields = {
                name: tuple(some) if isinstance(some, list) else some for name, some in likeliest._asdict().items()
            }
            emit(Distributions, step=step, position=i, texts=texts, **fields)
    tokens = [*verified.draft_token_ids[:accepted], verified.next_token]
    pieces = []
    for token in tokens:
        pieces.append(sequence.append(token))
        if sequence.reason:
            break
    last = Bonus if accepted == drafted else Recovered
    if drafted and len(pieces) == len(tokens):
        emit(
            last,
            step=step,
            position=accepted,
            token_id=verified.next_token,
            text=token_text(verified.next_token),
            p=verified.p_next,
        )
    top = verified.top[: len(pieces)]
    emit(
        Committed,
        step=step,
        token_ids=tuple(tokens[: len(pieces)]),
        origins=(*["accepted"] * accepted, last.kind if drafted else "plain")[: len(pieces)],
        pieces=tuple(pieces),
        probabilities=(*verified.p[:accepted], verified.p_next)[: len(pieces)],
        text="".join(pieces),
        top_token_ids=tuple(tuple(one.token_ids) for one in top),
        top_texts=tuple(tuple(map(token_text, one.token_ids)) for one in top),
        top_p=tuple(tuple(one.p) for one in top),
        entropies=tuple(one.entropy for one in top),
    )
