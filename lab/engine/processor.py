"""Turns a prompt into a sequence, or raises an error that says why not."""

import itertools
import secrets
import threading
from collections.abc import Iterator
from collections.abc import Sequence as Items
from dataclasses import asdict, replace

from transformers import PreTrainedTokenizerBase

from lab.backends.interface import Backends
from lab.config import EngineConfig, SamplingParams, gamma_table
from lab.engine.adaptive_window import AdaptiveWindow
from lab.engine.detokenizer import TextStream
from lab.engine.device_limits import device_limits
from lab.engine.memory_budget import Budget
from lab.engine.prompt_encoder import PromptEncoder
from lab.engine.sequence import DraftState, Prompt, Sequence
from lab.errors import ConfigError, PromptError
from lab.kv_cache.sdpa_support import refuse_sdpa
from lab.models.chat_template import Chat, ChatTemplate
from lab.models.state_head import HEADS
from lab.trace.events import RunStarted
from lab.trace.recorder import EventListener, Recorder
from lab.trace.roofline import Limits
from lab.util.machine_info import hardware
from lab.util.messages import counted


class Processor:
    def __init__(
        self,
        backends: Backends,
        tokenizer: PreTrainedTokenizerBase,
        budget: Budget,
        *,
        on_event: EventListener | None = None,
        seq_ids: Iterator[int] | None = None,
    ) -> None:
        self._backends = backends
        self._target = target = backends.target
        self._draft = backends.draft
        self._tokenizer = tokenizer
        self._budget = budget
        self._on_event = on_event
        self._hardware = hardware(str(target.device))
        self._seq_ids = seq_ids or itertools.count()
        self._prompts = PromptEncoder(tokenizer, target.name, target.vocabulary)
        eos = target.model.generation_config.eos_token_id if target.model.generation_config else None
        eos = tokenizer.eos_token_id if eos is None else eos
        self._eos = frozenset(eos if isinstance(eos, list) else [] if eos is None else [eos])

    @property
    def chat_template(self) -> ChatTemplate | None:
        return self._prompts.chat_template

    def sequence(
        self,
        prompt: str | Items[int] | Chat,
        config: EngineConfig | None,
        sampling: SamplingParams | None,
        cancelled: threading.Event | None = None,
        *,
        hidden: bool = False,
    ) -> Sequence:
        """The sequence of a request. ``hidden``: it serves another, and no listener gets its events. Raises what
        ``Engine.submit`` raises."""
        config, sampling = config or EngineConfig(), sampling or SamplingParams()
        if not isinstance(config, EngineConfig) or not isinstance(sampling, SamplingParams):
            raise ConfigError(
                "after the prompt pass an EngineConfig and a SamplingParams, not "
                f"{type(config).__name__} and {type(sampling).__name__}."
            )
        sampling = seeded(sampling)
        self._refuse_drafter(config)
        self._backends.refuse(config)
        refuse_sdpa(config.prefill_attention, self._target.device, self._target.dtype, self._target.head_dim)
        text, tokens, notes = self._prompts.encode(prompt, sampling.parse_special)
        stop_token_ids, about_stops = self._prompts.stops(sampling)
        gamma, about_gamma = self._gamma(config)
        by_batch = gamma_table(config.num_speculative_tokens_per_batch_size)
        config, about_prefixes = self._without_prefixes(config)
        if len(tokens) >= self._target.context_length:
            raise PromptError(
                f"The prompt has {len(tokens):,} tokens; {self._target.name} holds "
                f"{self._target.context_length:,}, prompt and output together. Shorten the prompt."
            )
        seq_id = next(self._seq_ids)
        sequence = Sequence(
            prompt=Prompt(
                text=text,
                pieces=() if hidden else self._prompts.pieces(tokens),
                length=len(tokens),
                sampling=sampling,
                given_as_ids=not isinstance(prompt, str),
                chat=prompt if isinstance(prompt, Chat) else None,
                notes=notes + about_stops + about_gamma + about_prefixes,
                eos=self._eos,
                stop_token_ids=stop_token_ids,
                hidden=hidden,
                cancelled=cancelled or threading.Event(),
            ),
            seq_id=seq_id,
            tokens=tokens,
            end=min(len(tokens) + sampling.max_tokens, self._target.context_length),
            config=config,
            text=TextStream(self._tokenizer, tokens, sampling.stop),
            recorder=Recorder(seq_id, None if hidden else self._on_event),
            recurrent=self._target.recurrent is not None,
            draft=DraftState(AdaptiveWindow(gamma, config.adaptive_window, by_batch)),
        )
        self._budget.refuse_misfit(len(tokens), sequence.end, config)
        if config.speculative == "synthetic":
            plain = replace(config, speculative="off")
            oracle = self.sequence(prompt, plain, sampling, sequence.prompt.cancelled, hidden=True)
            sequence.draft.oracle = oracle
        self.limits(config)  # here, so that measuring and compiling count in no request's time or peak memory
        return sequence

    def announce(self, sequence: Sequence) -> None:
        """Begin a sequence's record. Its clock starts here."""
        config, drafts = sequence.config, sequence.config.speculative == "draft"
        limits, (target, _) = self.limits(config), self._backends.models(config)
        sequence.report.limits = limits
        sequence.report.num_blocks = self._budget.cache_config(config).num_blocks
        sequence.recorder.emit(
            RunStarted,
            prompt=sequence.prompt.text,
            prompt_token_ids=tuple(sequence.tokens),
            prompt_pieces=sequence.prompt.pieces,
            prompt_given_as_ids=sequence.prompt.given_as_ids,
            messages=tuple(map(dict, sequence.prompt.chat.messages)) if sequence.prompt.chat else (),
            thinking=sequence.prompt.chat.thinking if sequence.prompt.chat else None,
            special_positions=tuple(i for i, token in enumerate(sequence.tokens) if token in self._prompts.special),
            notes=self._target.notes + (self._draft.notes if drafts else ()) + sequence.prompt.notes,
            config=asdict(config),
            sampling={
                name: list(it) if isinstance(it, tuple) else it for name, it in asdict(sequence.sampling).items()
            },
            target=self._target.name,
            draft=self._draft.name if drafts else None,
            device=str(self._target.device),
            dtype=self.dtype_name(config),
            num_blocks=sequence.report.num_blocks,
            block_bytes=config.block_size * self._budget.slot_bytes(config),
            state_bytes=self._budget.state_bytes(config),
            read_bytes_per_second=limits.bytes_per_second if limits else None,
            flops_per_second=limits.flops_per_second if limits else None,
            memory_bytes_per_second=limits.memory_bytes_per_second if limits else None,
            cuda_graphs=self._backends.captures(config) and config.kv_cache,
            compiled=target.compiled,
            hardware=self._hardware,
            group_windows=self._budget.group_windows(config),
        )

    def limits(self, config: EngineConfig) -> Limits | None:
        """The device's limits, measured when first asked for; None where a step's work cannot be counted."""
        if self._target.uncounted or (config.speculative == "draft" and self._draft.uncounted):
            return None
        return device_limits(self._backends.arithmetic(config))

    def dtype_name(self, config: EngineConfig) -> str:
        dtypes = self._target.dtype, self._backends.product_dtype(config)
        name, products = (str(dtype).removeprefix("torch.") for dtype in dtypes)
        return name if name == products else f"{name}, products of {products}"

    def _gamma(self, config: EngineConfig) -> tuple[int, tuple[str, ...]]:
        """The most tokens to draft in a round, with a sentence if a head cannot draft as many as asked for."""
        asked, head = config.num_speculative_tokens, self._target.heads.get(config.speculative)
        if head is None or asked <= (head.most_tokens or asked):
            return asked, ()
        most = counted(head.most_tokens, "token")
        return head.most_tokens, (f"The head drafts at most {most} in a pass: γ is {head.most_tokens}, not {asked}.",)

    def _without_prefixes(self, config: EngineConfig) -> tuple[EngineConfig, tuple[str, ...]]:
        """The configuration without prefix caching, with a sentence, if its drafter could not go on after a prefix: a
        draft with recurrent layers, of which no state is kept."""
        drafter = self._draft if config.speculative == "draft" else None
        if not (config.enable_prefix_caching and drafter and drafter.recurrent):
            return config, ()
        note = f"Prefix caching is off: the draft {drafter.name} has recurrent layers, whose states are not kept."
        return replace(config, enable_prefix_caching=False), (note,)

    def _refuse_drafter(self, config: EngineConfig) -> None:
        name, layers = self._target.name, self._target.layers
        if config.speculative == "draft" and self._draft is None:
            raise ConfigError(
                f"speculative='draft' needs a draft model, and {name} was loaded without one. Load it with a "
                "draft, or choose another drafter."
            )
        if config.speculative in HEADS and config.speculative not in self._target.heads:
            raise ConfigError(
                f"speculative={config.speculative!r} needs {HEADS[config.speculative]} that was trained for {name}, "
                "and it was loaded without one. Load it with such a head, or choose another drafter."
            )
        if config.speculative == "mtp" and "mtp" not in self._target.heads:
            raise ConfigError(
                f"speculative='mtp' needs an MTP head in the model's own checkpoint, and {name} has none. Load a model "
                "that brings one, such as GLM 4.5 or MiMo, or choose another drafter."
            )
        if config.speculative == "early_exit" and not self._target.early_layers(config.early_exit_layer) < layers:
            raise ConfigError(
                f"early_exit_layer={config.early_exit_layer} is not an exit: {name} has {counted(layers, 'layer')}. "
                f"Choose from 1 to {layers - 1}."
            )


def seeded(sampling: SamplingParams) -> SamplingParams:
    """``sampling`` with a seed, picked here if none was given, so that it is recorded either way."""
    return sampling if sampling.seed is not None else replace(sampling, seed=secrets.randbits(31))
