"""Measurements: ``python -m lab.bench ladder``."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from transformers.utils import logging as transformers_logging

from lab import LabError, load_engine
from lab.bench.ladder import format_rows, run_ladder
from lab.machine import describe_machine


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m lab.bench", description=__doc__)
    benches = parser.add_subparsers(dest="bench", required=True)
    ladder = benches.add_parser("ladder", help="each toggle's effect on speed, beside transformers' own generation")
    ladder.add_argument("--target", help="folder or hub id; default: the embedded pair")
    ladder.add_argument("--draft", help="folder or hub id; beside the embedded target: matched or mismatched")
    ladder.add_argument("--device")
    ladder.add_argument("--dtype", default="auto")
    ladder.add_argument("--max-tokens", type=int, default=128)
    ladder.add_argument("--repeats", type=int, default=3)
    ladder.add_argument("--json", type=Path, default=Path("runs/bench/ladder.json"))
    args = parser.parse_args()

    transformers_logging.set_verbosity_error()
    try:
        engine = load_engine(args.target, args.draft, device=args.device, dtype=args.dtype)
        if engine.draft is None:
            parser.error("the ladder has a rung for speculation: name a --draft too")
        result = run_ladder(engine, args.max_tokens, args.repeats, lambda line: print(line, flush=True))
    except LabError as error:
        parser.error(str(error))
    result = {"bench": "ladder", "machine": describe_machine(engine.device), **result}
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps(result, indent=1) + "\n", "utf-8")

    print("\n" + format_rows(result["gammas"], "no speculation"))
    print("\n" + format_rows(result["ladder"], "cache") + "\n")
    for name, ratio in result["ratios"].items():
        print(f"{ratio:6.2f}  {name}")
    print(f"\nwritten to {args.json}")


if __name__ == "__main__":
    main()
