"""The interface of back ends: what an engine asks of whatever computes its models.

A back end holds one model. It computes packed forward passes, drafts, samples from logits and verifies drafts against
them. ``lab.backends.choose`` builds the concrete ones; an engine sees none of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

import torch

from lab.config import EngineConfig, RejectionSampleMethod, SamplingParams
from lab.kv_cache.attention_metadata import SdpaChoice
from lab.kv_cache.block_table import BlockTable
from lab.kv_cache.kv_cache import CacheConfig, KVCache
from lab.kv_cache.storage import KVStorage
from lab.models.language_model import LanguageModel, Taps
from lab.models.state_head import StateHead
from lab.trace.events import Part

if TYPE_CHECKING:
    from lab.util.step_timer import StepTimer

Kernel = Literal["triton", "c", "reference"]
KernelChoice = Literal["auto", "triton", "c", "reference"]

PROPOSE, VERIFY, CHOOSE = range(3)
"""Columns of a sequence's uniform numbers: to draw a draft token, to verify it, to choose the target's own token."""


class KernelError(Exception):
    """A kernel was not compiled or did not run. Torch can compute the same."""


class NewTokens(NamedTuple):
    """One sequence's part of a forward pass.

    Attributes:
        token_ids: [count] int64 on the model's device.
        start: position of the first.
        table: where their keys and values go. None without a cache: ``start`` is then 0.
        keep: logits are wanted for the last ``keep`` of them.
    """

    token_ids: torch.Tensor
    start: int
    table: BlockTable | None
    keep: int

    @property
    def stop(self) -> int:
        """The position after the last."""
        return self.start + self.token_ids.numel()


class DraftTokens(NamedTuple):
    """One sequence's draft tokens of a step, on the device.

    Attributes:
        token_ids: [g] int64, g > 0.
        q: [g, vocabulary] float32, the distribution that each was drawn from; of a greedy request, the one that it is
            the likeliest of; of prompt lookup and greedy drafts, 1 on each. None: there is none, and a token is
            accepted if it is the target's own.
    """

    token_ids: torch.Tensor
    q: torch.Tensor | None


class DraftRound(NamedTuple):
    """One sequence's part of a verification: g draft tokens, or none.

    ``uniforms``: [g + 1, 3] float64 in [0, 1); the columns are ``PROPOSE``, ``VERIFY`` and ``CHOOSE``.
    """

    sampling: SamplingParams
    draft: DraftTokens | None
    uniforms: torch.Tensor
    method: RejectionSampleMethod = "standard"
    top_tokens: int = 0

    @property
    def num_draft_tokens(self) -> int:
        return self.draft.token_ids.numel() if self.draft else 0

    @property
    def has_q(self) -> bool:
        return self.draft is not None and self.draft.q is not None

    @property
    def is_sampled(self) -> bool:
        """True where ``method`` decides; otherwise a draft token is accepted if it is the target's own."""
        return self.has_q and not self.sampling.greedy


class TopTokens(NamedTuple):
    """The target's likeliest tokens at one position, the likeliest first, none of probability 0; and the entropy of its
    distribution there, in nats."""

    token_ids: list[int]
    p: list[float]
    entropy: float


class TokenDistributions(NamedTuple):
    """The likeliest tokens at one verified position, each once, the draft token first. On the host.

    Attributes:
        q: None if the drafter has no distribution.
        residual: what the recovered token was drawn from: max(p - q, 0), or as ``method`` has it, normalised. None
            where nothing was drawn from it.
        overlap: sum of min(p, q) over the vocabulary: the probability that a token drafted here is accepted
            (Leviathan et al., 2211.17192, theorem 3.5). None where nothing was drawn.
    """

    token_ids: list[int]
    p: list[float]
    q: list[float] | None
    residual: list[float] | None
    overlap: float | None


class Evidence(NamedTuple):
    """The numbers by which another rule than the standard one verified a draft token. None: the rule has none, or it is
    not finite.

    Attributes:
        threshold: block verification: the draft tokens up to this one are accepted, unless more are, if u is below it.
            Typical acceptance: the draft token is accepted if p is above it.
        product: block verification's min(1, product x p / q), from the first draft token to this one.
        total_variation: between p and the distribution of the token that typical acceptance puts here.
    """

    threshold: float | None
    product: float | None = None
    total_variation: float | None = None


TOP_TOKENS_ON_GPU = 256
"""Output tokens of a request for which ``top_tokens`` are found on a GPU, where their cost has not been measured."""


@dataclass(frozen=True, slots=True)
class Verification:
    """A verified round of g draft tokens, on the host. Those from the first non-finite q on are left out.

    Attributes:
        draft_token_ids: [g].
        p, q: [g], their probabilities.
        u: [g] in [0, 1), what decided about each. None: nothing was drawn.
        num_accepted: 0 to g.
        next_token: the token after the accepted ones, recovered or bonus; ``p_next``: its probability.
        finite: False if the target's output is not. ``draft_finite``: the drafter's.
        distributions: of each verified token, so min(num_accepted + 1, g) at least. Empty: not asked for.
        evidence: of each verified draft token. Empty: the standard rule, which stops at the first rejected one.
        top: at the accepted draft tokens and at the next token. Empty: not asked for.
    """

    draft_token_ids: list[int]
    p: list[float]
    q: list[float]
    u: list[float] | None
    num_accepted: int
    next_token: int
    p_next: float
    finite: bool
    draft_finite: bool
    distributions: list[TokenDistributions]
    evidence: list[Evidence]
    top: list[TopTokens] = field(default_factory=list)

    @property
    def num_judged(self) -> int:
        return len(self.evidence) or min(self.num_accepted + 1, len(self.draft_token_ids))


class PendingVerification(NamedTuple):
    """Rounds that the device verifies while the host goes on.

    Attributes:
        results: waits for them.
        target_tokens: [rows of the logits] int64, the target's own, on the device. None: not there ahead of the rest.
    """

    results: Callable[[], list[Verification]]
    target_tokens: torch.Tensor | None


class LaunchedPass(NamedTuple):
    """A pass that the device computes ahead. ``timer`` times it as "verify"."""

    logits: torch.Tensor
    timer: StepTimer


class Backend(ABC):
    """One model and what computes it.

    Attributes:
        model: the model itself, for its sizes and its name.
        reads_packed_weights: True if weights are read as packed copies of two bytes a number.
    """

    model: LanguageModel
    reads_packed_weights = False

    @abstractmethod
    def forward(
        self,
        batch: Sequence[NewTokens],
        storage: KVStorage | None,
        sdpa: SdpaChoice = "auto",
        taps: Taps | None = None,
    ) -> torch.Tensor:
        """Compute the new tokens of every sequence, and store their keys and values.

        Args:
            storage: None without a cache: all tokens are new, and nothing is kept.
            sdpa: torch's attention back end. "auto": whatever this back end has.
            taps: of the model's dtype, for the batch's new tokens in order: what is to be left there of their hidden
                states.

        Returns:
            [sum of keep, vocabulary] float32 logits, sequence by sequence.

        Raises:
            KernelError: see there. Storing the same keys and values again is safe.
            MemoryError, RuntimeError: see ``lab.util.device_memory.is_out_of_memory``.
        """

    @abstractmethod
    def draft(
        self,
        batch: Sequence[NewTokens],
        windows: Sequence[int],
        sampling: Sequence[SamplingParams],
        uniforms: Sequence[torch.Tensor],
        storage: KVStorage | None,
    ) -> list[DraftTokens]:
        """Compute the new tokens of every sequence, choose the next one, feed it back, and so on: ``windows[i]`` tokens
        for sequence i, of which the last is not fed back.

        Args:
            batch: each with ``keep`` 1.
            uniforms: [windows[i]] float64 in [0, 1) for each sequence, on the host.
        """

    def keep_state(self, table: BlockTable) -> None:  # noqa: B027
        """Keep what recurrent layers need to go on after the table's last full block that can be found."""

    @abstractmethod
    def sample(
        self, logits: torch.Tensor, sampling: Sequence[SamplingParams], u: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Each row's distribution, [rows, vocabulary] float32, and its next token, [rows] int64. ``u``: [rows] float64
        in [0, 1); None: nothing is drawn, and the tokens are the likeliest ones."""

    @abstractmethod
    def verify(self, logits: torch.Tensor, rounds: Sequence[DraftRound]) -> PendingVerification:
        """Decide on the device which draft tokens are accepted, and copy all that the host needs at once.

        Args:
            logits: [sum of (g + 1), vocabulary] float32, the target's, round by round.
        """

    @abstractmethod
    def first(self, layers: int) -> Backend:
        """The same model cut off after its first ``layers`` layers, over the same keys and values."""

    @abstractmethod
    def head(self, kind: str) -> HeadBackend:
        """The back end of the model's head of this kind."""

    def failures(self) -> dict[Part, str]:
        """The parts that steps go on without, each with the reason."""
        return {"compile": self.model.compile_failure} if self.model.compile_failure else {}

    # -- passes that are captured, and launched ahead of their step --------------------------

    def launch_ahead(self, batch: Sequence[NewTokens], storage: KVStorage) -> LaunchedPass | None:
        """Launch a pass whose tokens only the device knows yet. None: this cannot be done ahead."""
        return None

    @property
    def launches_ahead(self) -> bool:
        """True while ``launch_ahead`` may succeed."""
        return False

    @property
    def num_captured(self) -> int:
        """The number of steps captured as CUDA graphs for a target and its draft."""
        return 0

    @property
    def capturing(self) -> str | None:
        """The step that is being captured at this moment."""
        return None

    def captures(
        self, draft: Backend | None, cache: KVCache, config: EngineConfig, sequences: int, longest: int
    ) -> Iterator[tuple[str, Callable[[], None]]]:
        """The steps to capture for ``sequences`` requests like ``config`` of up to ``longest`` tokens: the name
        of each, and what captures it."""
        return iter(())

    def try_again(self) -> None:  # noqa: B027
        """Try anew what there was no memory for."""

    def close(self) -> None:  # noqa: B027
        """Free what is captured, before the cache is dropped."""


class HeadBackend(ABC):
    """A head that drafts from the target's hidden states and what computes it, over a storage with the target's slot
    numbers.

    With an EAGLE-3 or MTP head, a token's keys and values come from itself and the hidden states of the token before
    it; so the first token of a text has none. With a DFlash head they come from the token's own hidden states.

    Attributes:
        model: the head, for its sizes.
    """

    model: StateHead
    reads_packed_weights = False

    @abstractmethod
    def read(self, batch: Sequence[NewTokens], states: Sequence[torch.Tensor], storage: KVStorage) -> None:
        """Store the keys and values of every sequence's new tokens.

        Args:
            batch: without a cache, all tokens that can have any, from 0.
            states: [new tokens, width] for each sequence, the hidden states that they are read with.
        """

    @abstractmethod
    def draft(
        self,
        batch: Sequence[NewTokens],
        states: Sequence[torch.Tensor],
        windows: Sequence[int],
        sampling: Sequence[SamplingParams],
        uniforms: Sequence[torch.Tensor],
        storage: KVStorage | None,
    ) -> list[DraftTokens]:
        """Read, and draft ``windows[i]`` tokens after sequence i, as ``Backend.draft``. The hidden states of the newest
        token, the last one of each in ``batch``, are not known. ``q`` is 0 outside the draft vocabulary."""


class Arithmetic(Protocol):
    """The reads and products that a target's step consists of, to measure what a device does at best in just these. Two
    are equal if what they measure is.

    Attributes:
        weight_bytes: of the weights that a pass reads.
    """

    weight_bytes: int
    device: torch.device

    def read(self, size: int) -> Callable[[], object]:
        """A read of a buffer of ``size`` bytes, the same one every time."""

    def product(self, size: int) -> Callable[[], object]:
        """A product of two square matrices of ``size`` rows."""


class Backends(Protocol):
    """The back ends of an engine's target and draft, for every way to compute them that a request can ask for.

    ``asked`` in the methods is a request's configuration or its core's.

    Attributes:
        kernels: what computes a request with ``kernels="auto"``.
        cuda_graphs: True if its steps can be captured.
        target, draft: the models, as they are computed for such a request.
        failure: why kernels that were chosen could not be made ready.
    """

    kernels: Kernel
    cuda_graphs: bool
    target: LanguageModel
    draft: LanguageModel | None
    failure: str | None

    def prepare(self) -> None:
        """Make the models ready: before the first step, and after weights or adapters have changed."""

    def weights_identity(self) -> tuple[int, ...]:
        """Numbers that change when weights, their dtype or adapters do."""

    def create(self, asked: EngineConfig | CacheConfig) -> tuple[Backend, Backend | None]:
        """New back ends for target and draft. They share what fails and what is captured."""

    def models(self, asked: EngineConfig | CacheConfig) -> tuple[LanguageModel, LanguageModel | None]:
        """Target and draft, computed as asked. Compiling takes some seconds the first time."""

    def product_dtype(self, asked: EngineConfig) -> torch.dtype:
        """The dtype of the numbers that the target's linear layers multiply."""

    def arithmetic(self, asked: EngineConfig) -> Arithmetic:
        """The arithmetic of the target's steps after the prompt."""

    def uses_kernels(self, asked: EngineConfig) -> bool:
        """True if C or Triton computes the target's steps with a cache, and not torch."""

    def captures(self, asked: EngineConfig | CacheConfig) -> bool:
        """True if steps with a cache are captured as CUDA graphs."""

    def refuse(self, asked: EngineConfig) -> None:
        """Raises ConfigError where compiling is asked for and there is nothing to compile."""
