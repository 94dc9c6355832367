"""Against a vLLM server with the same pair: the same text, and as many draft tokens accepted per round.

The two share no code. For each round vLLM reports how many tokens were drafted and how many accepted, not which
(``lab.vllm.completion``). Decoding is greedy, so that nothing is drawn. Where the arithmetic differs, rounding may
swap two tokens that are almost equally likely: the texts part there, and the rounds with them.
"""

import argparse
import asyncio
import os
from collections import Counter
from collections.abc import Callable
from itertools import takewhile

from lab.config import EngineConfig, SamplingParams
from lab.engine.engine import Engine
from lab.errors import LabError
from lab.measure.measuring import refuse_failure
from lab.measure.theory import whole_rounds
from lab.measure.workload import PROMPTS
from lab.trace.events import Verified
from lab.trace.run import Run
from lab.vllm.client import Server
from lab.vllm.completion import ROUND_METRICS_FLAG, CompletionEnd, ReportedRounds


def read_vllm(args: argparse.Namespace) -> dict[str, object]:
    """The server. Raises LabError."""
    return {"server": Server(args.attach, os.environ.get("VLLM_API_KEY"))} | {
        name: getattr(args, name) for name in ("speculative", "max_tokens")
    }


def run_vllm(
    engine: Engine, server: Server, speculative: str, max_tokens: int, report: Callable[[str], None]
) -> dict[str, object]:
    """Have both decode every prompt of the ladder. Of each: whether the texts are the same, how many draft tokens of
    each round were accepted here (``ours``) and there (``theirs``), and for how many rounds from the first the counts
    agree (``alike``). Rounds here are those of a full window: none is drafted past the end. Raises LabError: the server
    cannot be asked, or does not report rounds; or a run here failed or gave up its draft."""
    models = asyncio.run(server.models())
    if not models:
        raise LabError(f"{server.address} serves no model.")
    sampling = SamplingParams(max_tokens=max_tokens)
    rows, gamma = [], 0
    for prompt in PROMPTS:
        text, there = asyncio.run(_answer(server, models[0], prompt, sampling))
        gamma = gamma or max(there.drafted)
        config = EngineConfig(speculative=speculative, num_speculative_tokens=gamma)
        run = engine.generate(prompt, config, sampling)
        refuse_failure(run, engine)
        ours, theirs = accepted_by_round(run, gamma), list(there.accepted)
        same = takewhile(lambda counts: counts[0] == counts[1], zip(ours, theirs, strict=False))
        rows.append(
            {
                "prompt": prompt,
                "tokens": len(run.token_ids),
                "same_text": text == run.text,
                "ours": ours,
                "theirs": theirs,
                "alike": sum(1 for _ in same),
            }
        )
        report(f"  {rows[-1]['alike']} of {len(ours)} rounds alike: {prompt}")
    return {"model": models[0], "speculative": speculative, "gamma": gamma, "rows": rows}


async def _answer(server: Server, model: str, prompt: str, sampling: SamplingParams) -> tuple[str, ReportedRounds]:
    pieces = [piece async for piece in server.complete(model, prompt, sampling)]
    end = pieces.pop()
    assert isinstance(end, CompletionEnd)
    if end.rounds is None or not any(end.rounds.drafted):
        raise LabError(f"{server.address} reported no rounds: start it with {ROUND_METRICS_FLAG} and a drafter.")
    return "".join(pieces), end.rounds


def accepted_by_round(run: Run, gamma: int) -> list[int]:
    """Accepted proposals of each round that had ``gamma`` of them."""
    accepted = Counter(event.step for event in run.events if isinstance(event, Verified) and event.accepted)
    return [accepted[step] for step in sorted(whole_rounds(run, gamma))]
