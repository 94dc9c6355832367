"""The model card, measured on the exported weights and written as ``card.json`` and ``README.md``: bits per byte, which
compares across tokenizers, and the drafts' acceptance rates."""

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from jinja2 import Environment, StrictUndefined
from safetensors.torch import load_file
from torch.nn import functional as F
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM, PreTrainedTokenizerFast

from lab import EngineConfig, SamplingParams, load_engine
from lab.models.state_head import HEADS
from lab.trace.run import AcceptanceStats, acceptance_stats
from lab.training import dflash, dspark, eagle3
from lab.training.corpus import UNSEEN_BOOK_STRIDE, CorpusSplit, encode, unseen_book
from lab.training.distillation import TEMPERATURE, TV_WEIGHT
from lab.training.training import TrainingRecord

BOOKS = Path(__file__).with_name("books.tsv")
"""Gutenberg number and title of each book, in the corpus' order."""

TEMPLATE = Path(__file__).with_name("model_card.md.jinja")

DRAFTS = ("draft", "mismatched", *HEADS)
SAMPLE_PROMPTS = (
    "Once upon a time there was",
    "The old woman looked at the boy and said,",
    "In the middle of the forest stood a little house, and",
    "The princess was not afraid of the dragon, because",
)
SAMPLE_TOKENS = 120
GAMMA = 4
NEW_TOKENS = 128
SEEDS = 10
"""Texts sampled after each prompt: those of one seed differ by more than drafters do."""
PROMPTS = 20
PROMPT_WORDS = 30


@dataclass(frozen=True)
class CrossEntropy:
    """Cross-entropy of some texts: ``bits`` = sum of -log2 p over all their ``tokens``."""

    bits: float
    tokens: int
    bytes: int

    @property
    def bits_per_byte(self) -> float:
        return self.bits / self.bytes

    @property
    def nats_per_token(self) -> float:
        return self.bits * math.log(2) / self.tokens

    def __add__(self, other: "CrossEntropy") -> "CrossEntropy":
        return CrossEntropy(self.bits + other.bits, self.tokens + other.tokens, self.bytes + other.bytes)


@torch.no_grad()
def cross_entropy(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, texts: list[str], *, rows: int = 8
) -> CrossEntropy:
    """Surprise over every token of every text, each text preceded by one end-of-text token.

    Windows are as long as the model's context and advance by half of it; a window
    scores the tokens that the one before it did not. A token is thus predicted from
    all that comes before it in its text, or from at least half a context.
    """
    context = model.config.max_position_embeddings
    end = tokenizer.eos_token_id
    windows, first_scored, tokens = [], [], 0
    for text in texts:
        ids = [end, *encode(tokenizer, [text])[:-1].tolist()]
        tokens += len(ids) - 1
        scored = 1  # of ids; the first is context only
        while scored < len(ids):
            start = 0 if scored == 1 else scored - context // 2
            windows.append(ids[start : start + context + 1])
            first_scored.append(scored - start)
            scored = start + len(windows[-1])
    bits = 0.0
    order = sorted(range(len(windows)), key=lambda i: len(windows[i]))  # little padding in a batch
    for batch in (order[i : i + rows] for i in range(0, len(order), rows)):
        longest = max(len(windows[i]) for i in batch)
        ids = torch.full((len(batch), longest), end)
        counted = torch.zeros(len(batch), longest, dtype=torch.bool)
        for row, i in enumerate(batch):
            ids[row, : len(windows[i])] = torch.tensor(windows[i])
            counted[row, first_scored[i] : len(windows[i])] = True
        ids, counted = ids.to(model.device), counted.to(model.device)
        logits = model(input_ids=ids[:, :-1], use_cache=False).logits.float()
        nats = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
        bits += nats[counted[:, 1:].flatten()].double().sum().item() / math.log(2)
    return CrossEntropy(bits, tokens, sum(len(text.encode()) for text in texts))


def story_prompts(split: CorpusSplit) -> list[str]:
    """``PROMPTS`` beginnings of held-out paragraphs: half from unseen endings, half from unseen books.

    Of each kind, paragraphs of at least twice ``PROMPT_WORDS`` words qualify; those taken
    are spread evenly among them, each from the middle of its stretch.
    """
    prompts, least = [], 2 * PROMPT_WORDS
    for texts, wanted in ((split.unseen_endings, PROMPTS - PROMPTS // 2), (split.unseen_books, PROMPTS // 2)):
        paragraphs = [line.split() for text in texts for line in text.splitlines()]
        long_enough = [line for line in paragraphs if len(line) >= least]
        if len(long_enough) < wanted:
            raise ValueError(f"{len(long_enough)} held-out paragraphs have {least} words, {wanted} are needed.")
        picks = [int((i + 0.5) * len(long_enough) / wanted) for i in range(wanted)]
        prompts += [" ".join(long_enough[i][:PROMPT_WORDS]) for i in picks]
    return prompts


def measure_acceptance(
    target: Path, draft: Path, prompts: list[str], temperature: float, device: str
) -> AcceptanceStats:
    """Continue each prompt by ``NEW_TOKENS`` tokens, or to an end of text: once greedily, or ``SEEDS`` times."""
    kind = draft.name if draft.name in HEADS else "draft"
    engine = load_engine(target=str(target), device=device, **{"head" if kind in HEADS else "draft": str(draft)})
    config = EngineConfig(speculative=kind, num_speculative_tokens=GAMMA)
    return acceptance_stats(
        engine.generate(prompt, config, SamplingParams(max_tokens=NEW_TOKENS, temperature=temperature, seed=seed))
        for seed in range(SEEDS if temperature else 1)
        for prompt in prompts
    )


def measure(
    weights: Path, split: CorpusSplit, records: dict[str, TrainingRecord], notes: dict[str, Any], device: str
) -> dict:
    """Everything the card says, ready for JSON.

    ``records`` say how each model was trained, ``notes`` on what; both are passed on as they are.
    """
    heads = {name: measure_head(weights / name, record) for name, record in records.items() if name in HEADS}
    records = {name: record for name, record in records.items() if name not in heads}
    seen = [text[-max(1, len(text) // 100) :] for text in split.train]
    kinds = {"seen": seen, "unseen_endings": split.unseen_endings, "unseen_books": split.unseen_books}
    models = {}
    for name, record in records.items():
        print(f"reading held-out text: {name}", flush=True)
        folder = weights / name
        model = AutoModelForCausalLM.from_pretrained(folder, dtype="float32").to(device).eval()
        tokenizer = AutoTokenizer.from_pretrained(folder)
        costs = {kind: cross_entropy(model, tokenizer, texts) for kind, texts in kinds.items()}
        costs["held_out"] = costs["unseen_endings"] + costs["unseen_books"]
        shape = model.config
        models[name] = {
            "parameters": model.num_parameters(),
            "layers": shape.num_hidden_layers,
            "hidden_size": shape.hidden_size,
            "intermediate_size": shape.intermediate_size,
            "query_heads": shape.num_attention_heads,
            "kv_heads": shape.num_key_value_heads,
            "head_dim": shape.head_dim,
            "vocabulary": shape.vocab_size,
            "context": shape.max_position_embeddings,
            "training": asdict(record),
            "text": {
                kind: {
                    "bits_per_byte": round(cost.bits_per_byte, 4),
                    "nats_per_token": round(cost.nats_per_token, 4),
                    "tokens": cost.tokens,
                    "bytes": cost.bytes,
                }
                for kind, cost in costs.items()
            },
        }
    prompts = story_prompts(split)
    accepted = {
        draft: measure_drafter(weights, draft, prompts, device)
        for draft in DRAFTS
        if draft in records or draft in heads
    }
    return {
        "models": models,
        "heads": heads,
        "corpus": _corpus(split) | notes,
        "acceptance": {
            "gamma": GAMMA,
            "new_tokens": NEW_TOKENS,
            "seeds": SEEDS,
            "prompts": prompts,
            "drafts": accepted,
        },
        "samples": _samples(weights / "target", device),
    }


def measure_drafter(weights: Path, draft: str, prompts: list[str], device: str) -> dict[str, dict[str, Any]]:
    """Acceptance of a draft or head by the target, greedy and at ``TEMPERATURE``."""
    accepted = {}
    for mode, temperature in (("greedy", 0.0), ("sampled", TEMPERATURE)):
        print(f"speculating: {draft}, {mode}", flush=True)
        result = measure_acceptance(weights / "target", weights / draft, prompts, temperature, device)
        accepted[mode] = asdict(result) | {
            "temperature": temperature,
            "acceptance_rate": round(result.acceptance, 4),
            "mean_acceptance_length": round(result.mean_acceptance_length, 3),
        }
    return accepted


def measure_head(folder: Path, record: TrainingRecord) -> dict[str, Any]:
    """A head's sizes and how it was trained."""
    config = json.loads((folder / "config.json").read_text("utf-8"))
    weights = load_file(folder / "model.safetensors")
    eagle, block = config.get("eagle_config"), config.get("dflash_config")
    return {
        "parameters": sum(weight.numel() for weight in weights.values() if weight.is_floating_point()),
        "layers": config["num_hidden_layers"],
        "intermediate_size": config["intermediate_size"],
        "draft_vocabulary": config.get("draft_vocab_size", config["vocab_size"]),
        "target_layers": (
            eagle["eagle_aux_hidden_state_layer_ids"] if eagle else [one + 1 for one in block["target_layer_ids"]]
        ),
        "training": asdict(record),
    }


def _corpus(split: CorpusSplit) -> dict[str, Any]:
    books = [line.split("\t") for line in BOOKS.read_text("utf-8").splitlines()]
    if len(books) != len(split.train) + len(split.unseen_books):
        books = []  # someone else's corpus: its titles are not known here
    return {
        "books": [{"gutenberg": int(number), "title": title} for number, title in books],
        "unseen_books": [title for index, (_, title) in enumerate(books) if unseen_book(index)],
        "texts": len(split.train) + len(split.unseen_books),
        "training_bytes": sum(len(text.encode()) for text in split.train),
    }


def _samples(target: Path, device: str) -> list[dict[str, Any]]:
    engine = load_engine(target=str(target), device=device)
    how = {"max_tokens": SAMPLE_TOKENS, "temperature": TEMPERATURE}
    return [
        {
            "prompt": prompt,
            "seed": seed,
            "text": engine.generate(prompt, sampling=SamplingParams(seed=seed, **how)).text,
        }
        for seed, prompt in enumerate(SAMPLE_PROMPTS)
    ]


def write(card: dict, weights: Path) -> None:
    """Write ``card.json``, and the same for people: ``README.md``."""
    (weights / "card.json").write_text(json.dumps(card, indent=1, ensure_ascii=False) + "\n", "utf-8")
    (weights / "README.md").write_text(render(card), "utf-8")


def render(card: dict) -> str:
    """The model card in Markdown (``model_card.md.jinja``, a Jinja template). Every figure comes out of ``card``."""
    environment = Environment(trim_blocks=True, keep_trailing_newline=True, undefined=StrictUndefined)
    template = environment.from_string(TEMPLATE.read_text("utf-8"))
    return template.render(
        card,
        TEMPERATURE=TEMPERATURE,
        TV_WEIGHT=TV_WEIGHT,
        STEPS=eagle3.STEPS,
        MOST=dflash.BLOCK_SIZE - 1,
        HEADS=HEADS,
        RANK=dspark.RANK,
        UNSEEN_BOOK_STRIDE=UNSEEN_BOOK_STRIDE,
        PROMPT_WORDS=PROMPT_WORDS,
    )
