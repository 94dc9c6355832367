"""Models of any size with random weights, which compute what real ones do and output a script instead.

The output of random weights means nothing, and where their likeliest token is nearly a tie, a verify of several tokens
may choose another one than a decode. So their own logits are computed and discarded.
"""

import math
from dataclasses import replace

import torch
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import WordLevel
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast

from lab.engine.engine import Engine
from lab.kv_cache.attention_metadata import BlockPlan, StepPlan
from lab.load import new_engine
from lab.memory.model_memory import known_models
from lab.models.language_model import LanguageModel
from lab.models.model_shape import ModelShape

END = 1
"""The id that ends a text. A script has only larger ids."""


LLAMA_8B, LLAMA_1B = (known_models()[name].shape for name in ("llama-3.1-8b", "llama-3.2-1b"))
TINY_TARGET = ModelShape(
    layers=2,
    heads=4,
    kv_heads=2,
    head_dim=16,
    hidden_size=64,
    intermediate_size=128,
    vocabulary=300,
    context_length=2048,
)
TINY_DRAFT = replace(TINY_TARGET, layers=1, heads=2, kv_heads=1, hidden_size=32, intermediate_size=64, tied=True)


def llama(shape: ModelShape) -> LlamaConfig:
    """A Llama of that shape, without the scaling of rotary frequencies."""
    return LlamaConfig(
        num_hidden_layers=shape.layers,
        hidden_size=shape.hidden_size,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        intermediate_size=shape.intermediate_size,
        vocab_size=shape.vocabulary,
        max_position_embeddings=shape.context_length,
        tie_word_embeddings=shape.tied,
        rope_parameters={"rope_type": "default", "rope_theta": 500_000.0},
        bos_token_id=None,
        eos_token_id=END,
    )


class Scripted(LanguageModel):
    """A model with random weights, created on the device, that outputs ``script``.

    Attributes:
        script: [context] int64, the token after each position. Writing into it changes the output, in captured
            steps too.
    """

    def __init__(
        self,
        shape: ModelShape,
        script: torch.Tensor,
        name: str,
        *,
        dtype: torch.dtype,
        device: torch.device,
        end: float = 0,
    ) -> None:
        """``end``: probability of END instead, at temperature 1: lengths are then geometric."""
        with torch.device(device):
            model = AutoModelForCausalLM.from_config(llama(shape), dtype=dtype)
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
        logits = super().forward(token_ids, positions, plan, keep, out)
        logits.fill_(-math.inf)
        logits.scatter_(1, self.script[positions[keep]][:, None], math.log1p(-self._end))
        if self._end:
            logits[:, END] = math.log(self._end)
        return logits


def random_script(shape: ModelShape, device: torch.device) -> torch.Tensor:
    """[context] int64. A wrong draft token is the next larger id, which is in the vocabulary too."""
    return torch.randint(END + 1, shape.vocabulary - 1, (shape.context_length,), device=device)


def draft_script(script: torch.Tensor, rate: float, seed: int = 0) -> torch.Tensor:
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
    return new_engine(target, tokenizer(target.vocabulary), draft, kernels=kernels, **settings)


def prompt(tokens: int, first: int = 2) -> str:
    """A text of ``tokens`` tokens that begins with another token for each ``first`` below 200."""
    return " ".join(f"t{2 + (first + 7 * i) % 200}" for i in range(tokens))
