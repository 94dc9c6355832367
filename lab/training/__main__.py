"""Train the embedded pair: ``python -m lab.training --corpus FILE``.

Every stage keeps its results in the work folder: started again, the recipe
continues where it stopped and skips what is complete.
"""

import argparse
import os
import platform
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoTokenizer, LlamaForCausalLM, PreTrainedTokenizerFast

from lab.cli.arguments import INTERRUPTED, path
from lab.models.state_head import StateHead
from lab.training import dflash, dspark, eagle3
from lab.training.corpus import CorpusSplit, encode, read_split, standard_library, train_tokenizer
from lab.training.distillation import SAMPLE, TEMPERATURE, distillation_loss, sample_target
from lab.training.training import (
    Loss,
    Parts,
    TrainingRecord,
    draft_shape,
    export,
    next_token_loss,
    restore,
    target_shape,
    train,
)
from lab.util.stdio import print_notes

SHAPES = {"target": target_shape, "draft": draft_shape, "mismatched": draft_shape}
WEIGHTS = Path(__file__).parents[1] / "models" / "weights"
DRAFT_OPTIONS = {"peak_lr": 2e-2, "tokens_a_step": 4096}  # a small model likes large and many steps
SAMPLED_SHARE = 0.6
"""Share of the draft's training windows that the target wrote; the others are from the books."""
SHARPEN_OPTIONS = {"peak_lr": 8e-3, "tokens_a_step": 4096}
HEADS = {"eagle3": eagle3, "dflash": dflash, "dspark": dspark}
HEAD_LR = {"eagle3": 6e-3, "dflash": 6e-3, "dspark": 1e-2}  # the first two begin from the target's own layers
HEAD_TOKENS_A_STEP = {"eagle3": 2048, "dflash": 1024, "dspark": 2048}
CHECKPOINTS = {"target": "target", "draft": "sharpened", "mismatched": "mismatched"}
"""The checkpoint of each finished model."""


def _empty(name: str) -> LlamaForCausalLM:
    return LlamaForCausalLM(SHAPES[name]())


class Recipe:
    """The stages, in order, sharing one work folder."""

    stages = ("tokenizer", "target", "draft", "sharpened", "mismatched", *HEADS, "export", "report")

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.work: Path = args.work
        self.work.mkdir(parents=True, exist_ok=True)

    @cached_property
    def split(self) -> CorpusSplit:
        return read_split(self.args.corpus)

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerFast:
        folder = self.work / "tokenizer"
        if not folder.exists():
            train_tokenizer(self.split.train).save_pretrained(folder)
        return AutoTokenizer.from_pretrained(folder)

    @cached_property
    def tokens(self) -> np.ndarray:
        return self._tokens("train.npy", lambda: self.split.train)

    @cached_property
    def python_tokens(self) -> np.ndarray:
        return self._tokens(self._python_file, standard_library)

    @cached_property
    def _python_file(self) -> str:
        """Named after the Python whose library it holds; a file from an earlier start is kept."""
        earlier = sorted(self.work.glob("python-*.npy"))
        return earlier[0].name if earlier else f"python-{platform.python_version()}.npy"

    def _tokens(self, name: str, texts: Callable[[], list[str]]) -> np.ndarray:
        file = self.work / name
        if not file.exists():
            np.save(file, encode(self.tokenizer, texts()))
        return np.load(file)

    def run_tokenizer(self) -> None:
        books, kinds = len(self.split.train), len(self.tokenizer)
        print(f"{len(self.tokens) / 1e6:.2f}M training tokens from {books} books, {kinds:,} kinds", flush=True)

    def run_target(self) -> None:
        self._train("target", [(self.tokens, 1.0)], next_token_loss, self.args.target_tokens)

    def run_draft(self) -> None:
        """The draft learns from greedy and sampled text alike: it will be used on both."""
        target = self._target()
        parts = self._mixture(target, "samples.npy")
        self._train("draft", parts, distillation_loss(target), self.args.draft_tokens, **DRAFT_OPTIONS)

    def run_sharpened(self) -> None:
        """Then train for what is left to gain at temperature 0.8: the shared mass alone, on text sampled at it."""
        draft, _ = restore(_empty("draft"), self.work / "draft.pt")
        target = self._target()
        parts = self._mixture(target, "drawn.npy", temperatures=(TEMPERATURE,), seed=1)
        loss = distillation_loss(target, kl_weight=0.0)
        self._train("sharpened", parts, loss, self.args.sharpen_tokens, build=lambda: draft, **SHARPEN_OPTIONS)

    def _target(self) -> LlamaForCausalLM:
        target, _ = restore(_empty("target"), self.work / "target.pt")
        return target.to(self.args.device, torch.bfloat16)  # as it will be exported

    def _mixture(self, target: LlamaForCausalLM, file: str, **options: Any) -> Parts:
        count = int(self.args.sampled_tokens) // SAMPLE
        samples = sample_target(target, self.tokens, count=count, file=self.work / file, **options)
        return [(samples, SAMPLED_SHARE), (self.tokens, 1 - SAMPLED_SHARE)]

    def run_mismatched(self) -> None:
        parts = [(self.python_tokens, 1.0)]
        self._train("mismatched", parts, next_token_loss, self.args.mismatched_tokens, **DRAFT_OPTIONS)

    def run_eagle3(self) -> None:
        self._train_head("eagle3", eagle3.unrolled_loss, self._new_eagle3)

    def run_dflash(self) -> None:
        self._train_head("dflash", dflash.block_loss, lambda: dflash.new_head(self._target().cpu()))

    def run_dspark(self) -> None:
        self._train_head("dspark", dflash.block_loss, lambda: dspark.new_head(self._block()))

    def _block(self) -> dflash.DFlashHead:
        return restore(dflash.new_head(self._target().cpu()), self.work / "dflash.pt")[0]

    def _train_head(self, name: str, loss: Callable[[LlamaForCausalLM], Loss], build: Callable[[], StateHead]) -> None:
        """A head learns on the material that the draft began with."""
        target = self._target()
        parts, tokens = self._mixture(target, "samples.npy"), getattr(self.args, f"{name}_tokens")
        how = {"peak_lr": HEAD_LR[name], "tokens_a_step": HEAD_TOKENS_A_STEP[name]}
        self._train(name, parts, loss(target), tokens, build=build, **how)

    def _heads(self) -> dict[str, tuple[StateHead, TrainingRecord]]:
        target = self._target().cpu()
        # Which tokens the first one drafts, its checkpoint says.
        empty = {
            "eagle3": eagle3.new_head(target, torch.arange(eagle3.DRAFT_VOCABULARY)),
            "dflash": dflash.new_head(target),
            "dspark": dspark.new_head(dflash.new_head(target)),
        }
        return {name: restore(head, self.work / f"{name}.pt") for name, head in empty.items()}

    def _new_eagle3(self) -> StateHead:
        target = self._target()
        parts = self._mixture(target, "samples.npy")
        tokens = eagle3.frequent_tokens(parts, target.config.vocab_size, eagle3.DRAFT_VOCABULARY)
        return eagle3.new_head(target.cpu(), tokens)

    def _train(self, name: str, parts: Parts, loss: Loss, tokens: float, **options: Any) -> None:
        print(f"training {name}", flush=True)
        train(
            options.pop("build", lambda: _empty(name)),
            parts,
            loss,
            tokens=int(tokens),
            checkpoint=self.work / f"{name}.pt",
            device=self.args.device,
            compiled=self.args.compiled,
            **options,
        )

    def run_export(self) -> None:
        # All of them first: exporting deletes the models that are there.
        models = {name: restore(_empty(name), self.work / f"{CHECKPOINTS[name]}.pt")[0] for name in SHAPES}
        heads = self._heads()
        for name, model in models.items():
            export(model, self.tokenizer, self.args.out / name)
        for name, (head, _) in heads.items():
            HEADS[name].export_head(head, self.args.out / name)
        size = sum(file.stat().st_size for file in self.args.out.rglob("*") if file.is_file())
        print(f"wrote {self.args.out}: {size / 1e6:.1f} MB", flush=True)

    def run_report(self) -> None:
        from lab.training import model_card as report  # it needs the whole engine, training does not

        records = {name: restore(_empty(name), self.work / f"{name}.pt")[1] for name in SHAPES}
        _, sharpening = restore(_empty("draft"), self.work / "sharpened.pt")
        records["draft"] = records["draft"].then(sharpening)
        records |= {name: record for name, (_, record) in self._heads().items()}
        notes = {
            "training_tokens": len(self.tokens),
            "sampled_tokens": len(np.load(self.work / "samples.npy", mmap_mode="r")),
            "sampled_share": SAMPLED_SHARE,
            "sharpening_tokens": sharpening.tokens,
            "drawn_tokens": len(np.load(self.work / "drawn.npy", mmap_mode="r")),
            "python": Path(self._python_file).stem.removeprefix("python-"),
            "python_tokens": len(self.python_tokens),
        }
        report.write(report.measure(self.args.out, self.split, records, notes, self.args.device), self.args.out)
        print(f"wrote {self.args.out / 'README.md'}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m lab.training", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--corpus", type=path, required=True, help="UTF-8; one paragraph a line, books separated by an empty line"
    )
    parser.add_argument("--stage", choices=("all", *Recipe.stages), default="all")
    parser.add_argument("--work", type=path, default=Path("runs/pair"), help="checkpoints and token files")
    parser.add_argument("--out", type=path, default=WEIGHTS, help="where the finished models go")
    parser.add_argument("--target-tokens", type=float, default=12.5e6)
    parser.add_argument(
        "--sampled-tokens",
        type=float,
        default=1.6e6,
        help="that the target writes for each training of the draft",
    )
    parser.add_argument("--draft-tokens", type=float, default=17e6)
    parser.add_argument("--sharpen-tokens", type=float, default=5e6)
    parser.add_argument("--mismatched-tokens", type=float, default=3e6)
    for name in HEADS:
        parser.add_argument(f"--{name}-tokens", type=float, default=5e6)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--no-compile", dest="compiled", action="store_false")
    args = parser.parse_args()
    if not args.corpus.is_file():
        raise SystemExit(f"There is no corpus at {args.corpus}.")

    try:
        recipe = Recipe(args)
        for stage in Recipe.stages if args.stage == "all" else (args.stage,):
            getattr(recipe, f"run_{stage}")()
    except (OSError, ValueError) as error:
        raise SystemExit(str(error)) from error
    except KeyboardInterrupt:
        print_notes(["Stopped. Started again, the recipe continues where it stopped."])
        raise SystemExit(INTERRUPTED) from None


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    main()
