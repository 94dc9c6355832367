"""Command line of the recipe. See ``--help``."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedTokenizerFast

from lab.pair.recipe.text import encode, read_split, train_tokenizer
from lab.pair.recipe.training import next_token_loss, target_shape, train


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m lab.pair.recipe", description=__doc__)
    parser.add_argument(
        "--corpus", type=Path, required=True, help="one paragraph a line, books separated by an empty line"
    )
    parser.add_argument("--work", type=Path, default=Path("runs/pair"), help="checkpoints and token files")
    parser.add_argument("--target-tokens", type=float, default=24e6)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--no-compile", dest="compiled", action="store_false")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)

    split = read_split(args.corpus)
    tokenizer_file = args.work / "tokenizer"
    if tokenizer_file.exists():
        tokenizer = PreTrainedTokenizerFast.from_pretrained(tokenizer_file)
    else:
        tokenizer = train_tokenizer(split.train)
        tokenizer.save_pretrained(tokenizer_file)
    cached = args.work / "train.npy"
    if not cached.exists():
        np.save(cached, encode(tokenizer, split.train))
    data = np.load(cached)
    print(f"{len(data) / 1e6:.2f}M training tokens from {len(split.train)} books", flush=True)

    train(
        target_shape(),
        data,
        next_token_loss,
        tokens=int(args.target_tokens),
        checkpoint=args.work / "target.pt",
        device=args.device,
        compiled=args.compiled,
    )


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    main()
