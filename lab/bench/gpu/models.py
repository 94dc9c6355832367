"""Models of any size with random weights, which compute what real ones do and output a script instead.

The output of random weights means nothing, and where their likeliest token is nearly a tie, a verify of several tokens
may choose another one than a decode. So their own logits are computed and discarded.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import WordLevel
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast

from lab.decode.engine import Engine
from lab.kv.plan import BlockPlan, StepPlan
from lab.pair.models import LanguageModel

END = 1
"""The id that ends a text. A script has only larger ids."""


@dataclass(frozen=True)
class Shape:
    """The shape of a Llama."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    context: int
    tied: bool

    def config(self) -> LlamaConfig:
        return LlamaConfig(
            num_hidden_layers=self.layers,
            hidden_size=self.hidden,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            head_dim=self.head_dim,
            intermediate_size=self.intermediate,
            vocab_size=self.vocabulary,
            max_position_embeddings=self.context,
            tie_word_embeddings=self.tied,
            rope_parameters={"rope_type": "default", "rope_theta": 500_000.0},
            bos_token_id=None,
            eos_token_id=END,
        )


LLAMA_8B = Shape(32, 4096, 32, 8, 128, 14336, 128256, 131072, tied=False)
"""Llama 3.1 8B's (its config.json), without the scaling of rotary frequencies."""
LLAMA_1B = Shape(16, 2048, 32, 8, 64, 8192, 128256, 131072, tied=True)
"""Llama 3.2 1B's, likewise."""
TINY_TARGET = Shape(2, 64, 4, 2, 16, 128, 300, 2048, tied=False)
TINY_DRAFT = Shape(1, 32, 2, 1, 16, 64, 300, 2048, tied=True)


class Scripted(LanguageModel):
    """A model with random weights, created on the device, that outputs ``script``.

    Attributes:
        script: [context] int64, the token after each position. Writing into it changes the output, in captured
            steps too.
    """

    def __init__(
        self, shape: Shape, script: torch.Tensor, name: str, *, dtype: torch.dtype, device: torch.device, end: float = 0
    ) -> None:
        """``end``: probability of END instead, at temperature 1: lengths are then geometric."""
        with torch.device(device):
            model = AutoModelForCausalLM.from_config(shape.config(), dtype=dtype)
        super().__init__(model.requires_grad_(False), name)
        self.script = script
        self._end = end

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        plan: StepPlan | BlockPlan,
        keep: torch.Tensor,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """See ``LanguageModel.forward``: the script is written over the logits that it computes."""
        said = super().forward(token_ids, positions, plan, keep, out)
        said.fill_(-math.inf)
        said.scatter_(1, self.script[positions[keep]][:, None], math.log1p(-self._end))
        if self._end:
            said[:, END] = math.log(self._end)
        return said


def random_script(shape: Shape, device: torch.device) -> torch.Tensor:
    """[context] int64. A wrong guess is the next larger id, which is in the vocabulary too."""
    return torch.randint(END + 1, shape.vocabulary - 1, (shape.context,), device=device)


def guess(script: torch.Tensor, rate: float, seed: int = 0) -> torch.Tensor:
    """A draft's script: right at each position with probability ``rate``, and in every hundred exactly so often.

    With positions independent of each other, the tokens that a round gives would vary twice as much from run to run:
    simulated 20,000 times at rate 0.9, gamma 8 and 256 tokens, by 8% (standard deviation) instead of 4%. Their mean is
    the formula's to within 1%.
    """
    drawn = torch.rand(-(-len(script) // 100), 100, generator=torch.Generator().manual_seed(seed))
    right = drawn.argsort(1).flatten()[: len(script)] < round(100 * rate)
    return torch.where(right.to(script.device), script, script + 1)


def tokenizer(vocabulary: int) -> PreTrainedTokenizerFast:
    """A word is a token: "t7" is 7."""
    words = {f"t{i}": i for i in range(vocabulary) if i != END} | {"<end>": END}
    core = Tokenizer(WordLevel(words, unk_token="t0"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<end>")


def engine(target: Scripted, draft: Scripted | None = None, **settings: object) -> Engine:
    """``settings``: of ``Engine``. No step in C: it computes the head itself and would output what the weights say."""
    kernels = "auto" if target.device.type == "cuda" else "reference"
    return Engine(target, tokenizer(target.vocabulary), draft, kernels=kernels, **settings)


def prompt(tokens: int, first: int = 2) -> str:
    """A text of ``tokens`` tokens that begins with another token for each ``first`` below 200."""
    return " ".join(f"t{2 + (first + 7 * i) % 200}" for i in range(tokens))
