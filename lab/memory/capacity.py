"""A device's memory: the weights, and the KV cache of as many sequences as fit.

The cache is laid out as in this lab (``lab.kv_cache``): slots in blocks, a sequence's blocks reserved for the most it
may need (contiguous) or allocated as they fill (paged; Kwon et al., 2309.06180).
"""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import torch

from lab.config import KVFormat, require_whole
from lab.errors import ConfigError
from lab.kv_cache.formats import VectorBytes
from lab.kv_cache.kv_cache import exempt_layers
from lab.kv_cache.storage import FORMATS, bytes_per_token
from lab.memory.catalogue import MAX_GIB, TABLE_BITS, WEIGHT_BITS, GiB, WeightFormat
from lab.models.model_shape import ModelShape

MAX_PARAMETERS = 10**15
Policy = Literal["contiguous", "paged"]
POLICIES: tuple[Policy, ...] = get_args(Policy)


class MemorySplit(NamedTuple):
    """Bytes of a device's memory by purpose; they add up to all of it. ``tokens``: keys and values of tokens. ``vain``:
    slots that sequences hold and never fill. ``unused``: the rest of the cache, too little for another sequence."""

    weights: float
    set_aside: float
    tokens: float
    vain: float
    unused: float


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """One model on one device.

    Attributes:
        shape, parameters: of the model.
        weights: how a parameter of a layer is stored. The compute dtype is float32 if that is, else bfloat16.
        kv_dtype: what a cache slot holds; "auto" is the compute dtype.
        kv_cache_dtype_skip_layers: layers whose slots hold the compute dtype.
        memory: bytes of the device.
        set_aside: share of the memory kept for activations, the device's own context and fragmentation.
        lengths: of the sequences, each counted at its full length.
        block_size: token positions in a block.
        state_bytes: of a sequence's recurrent state, which is as large for a long text as for a short one.

    Raises:
        ConfigError: a value out of range.
    """

    shape: ModelShape
    parameters: int
    weights: WeightFormat = "bfloat16"
    kv_dtype: KVFormat = "auto"
    kv_cache_dtype_skip_layers: str = ""
    memory: int
    set_aside: float = 0.1
    lengths: "Lengths"
    block_size: int = 16
    state_bytes: int = 0

    def __post_init__(self) -> None:
        if self.weights not in WEIGHT_BITS:
            raise ConfigError(f"weights must be one of {', '.join(map(repr, WEIGHT_BITS))}, not {self.weights!r}.")
        if self.kv_dtype not in FORMATS:
            raise ConfigError(f"kv_dtype must be one of {', '.join(map(repr, FORMATS))}, not {self.kv_dtype!r}.")
        if not 1 <= self.memory <= MAX_GIB * GiB:
            raise ConfigError(f"A device's memory must be above 0 and at most {MAX_GIB:,} GiB.")
        if not 0 <= self.set_aside < 1:
            raise ConfigError(f"The share set aside must be from 0 to below 1, not {self.set_aside!r}.")
        exempt_layers(self.shape, self.kv_cache_dtype_skip_layers)
        require_whole("block_size", self.block_size, 1, 1024)
        require_whole("parameters", self.parameters, 1, MAX_PARAMETERS)

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32 if self.weights == "float32" else torch.bfloat16

    @property
    def vector_bytes(self) -> VectorBytes:
        return FORMATS[self.kv_dtype].vector_bytes(self.shape.head_dim, self.dtype)

    @property
    def token_bytes(self) -> int:
        """Bytes of one token in all layers that keep it: keys, values and scales."""
        return sum(self._token_bytes.values())

    @property
    def exempt(self) -> Counter[int | None]:
        """The number of exempt layers with keys and values of their own, by the positions that a token sees."""
        shape = self.shape
        return shape.windows_among(exempt_layers(shape, self.kv_cache_dtype_skip_layers))

    @property
    def _token_bytes(self) -> dict[int | None, int]:
        """Of ``token_bytes`` those in the layers of each window."""
        how, exempt, slot = {"dtype": self.dtype}, self.exempt, self.shape.slot
        return {
            window: bytes_per_token(self.kv_dtype, layers=layers, exempt=exempt[window], **slot(window), **how)
            for window, layers in self.shape.kv_layers.items()
        }

    def kept(self, tokens: int) -> float:
        """Tokens of a sequence of ``tokens`` that are kept, the mean over its layers, each by its bytes: of one with a
        sliding window those within it, as a paged cache frees blocks that slid out."""
        return self._over_layers(lambda window: min(tokens, window or tokens))

    @property
    def mean_kept(self) -> float:
        """As ``kept``, on average over the sequences."""
        return self._over_layers(self.lengths.mean_within)

    def sequence_bytes(self, tokens: int) -> float:
        """Bytes of a sequence of ``tokens``: what is kept of them, and its recurrent state."""
        return self.kept(tokens) * self.token_bytes + self.state_bytes

    @property
    def mean_bytes(self) -> float:
        """Bytes of a sequence, on average."""
        return self.mean_kept * self.token_bytes + self.state_bytes

    def _over_layers(self, of: Callable[[int | None], float]) -> float:
        kept = self._token_bytes
        return sum(size * of(window) for window, size in kept.items()) / sum(kept.values())

    @property
    def weight_bytes(self) -> int:
        bits = WEIGHT_BITS[self.weights]
        tables = min(self.shape.tables + self.shape.layer_table, self.parameters)
        return -(-((self.parameters - tables) * bits + tables * max(bits, TABLE_BITS)) // 8)

    @property
    def usable_bytes(self) -> int:
        return math.floor(self.memory * (1 - self.set_aside))

    @property
    def cache_bytes(self) -> int:
        """Memory left for the cache; negative if not even the weights fit."""
        return self.usable_bytes - self.weight_bytes

    @property
    def num_blocks(self) -> int:
        return max(0, self.cache_bytes) // (self.token_bytes * self.block_size)

    def blocks_per_sequence(self, policy: Policy) -> float:
        """Contiguous: those of the longest sequence, however many are filled. Paged: those filled on average. The mean
        over its layers, and the recurrent state as so many more."""
        of = self.lengths.most_blocks if policy == "contiguous" else self.lengths.mean_blocks
        blocks = self._over_layers(lambda window: of(self.block_size, window))
        return blocks + self.state_bytes / (self.block_size * self.token_bytes)

    def sequences(self, policy: Policy) -> int:
        """Sequences that fit at once. Paged: on average; the lengths of the moment decide how many really do."""
        return math.floor(self.num_blocks / self.blocks_per_sequence(policy) + 1e-9)

    def split(self, policy: Policy) -> MemorySplit:
        """The memory by purpose with ``sequences(policy)`` in flight. Weights that do not fit take all there is."""
        set_aside = self.memory - self.usable_bytes
        weights = min(self.weight_bytes, self.memory - set_aside)
        count = self.sequences(policy)
        held = count * self.blocks_per_sequence(policy) * self.block_size * self.token_bytes
        tokens = count * self.mean_bytes
        return MemorySplit(weights, set_aside, tokens, held - tokens, self.memory - set_aside - weights - held)


MAX_LENGTH = 10_000_000


@dataclass(frozen=True)
class Lengths:
    """Truncated geometric lengths: a sequence ends after every token with the same probability, or else at ``longest``.

    Most are short and a few several times as long: one in e^4 is longer than four times the mean, as with the
    log-normal lengths of ``lab.measure.workload``. Everything here follows in closed form from P(length > n) = r^n for
    n < longest. ``mean``: of the truncated lengths, in tokens. Raises ConfigError for a mean that such lengths cannot
    have.
    """

    mean: float
    longest: int

    def __post_init__(self) -> None:
        if not isinstance(self.longest, int) or not 1 <= self.longest <= MAX_LENGTH:
            raise ConfigError(f"The longest sequence must be a whole number of tokens from 1 to {MAX_LENGTH:,}.")
        if not 1 <= self.mean <= self.longest:
            raise ConfigError(
                f"The mean length must be between 1 token and the longest, {self.longest:,}, not {self.mean:,.10g}."
            )

    @property
    def log_survival(self) -> float:
        """ln r, where r is the probability that a sequence goes on after a token, such that the mean is as given."""
        if self.mean == self.longest:
            return 0.0
        # The mean falls as the probability of ending, 1 - r, rises. Bisection on its logarithm.
        low, high = math.log(1e-18), 0.0
        for _ in range(100):
            middle = (low + high) / 2
            shorter = _geometric_sum(_log_survival(middle), self.longest) < self.mean
            low, high = (low, middle) if shorter else (middle, high)
        return _log_survival(low)

    def mean_within(self, window: int | None = None) -> float:
        """The mean of the lengths, each counted up to ``window`` at most."""
        return self.mean if window is None else _geometric_sum(self.log_survival, min(window, self.longest))

    def mean_blocks(self, block_size: int, window: int | None = None) -> float:
        """Blocks that a sequence fills on average, the last one perhaps in part: the sum over k of P(length > k
        block_size). ``window``: of its newest tokens alone.
        """
        return _geometric_sum(self.log_survival * block_size, self.most_blocks(block_size, window))

    def most_blocks(self, block_size: int, window: int | None = None) -> int:
        return -(-min(self.longest, window or self.longest) // block_size)


def _log_survival(log_ending: float) -> float:
    ending = math.exp(log_ending)
    return math.log1p(-ending) if ending < 1 else -math.inf


def _geometric_sum(log_ratio: float, terms: int) -> float:
    """1 + q + ... + q^(terms - 1) for q = e^log_ratio, accurate for q close to 1 too."""
    if log_ratio == -math.inf:
        return 1.0
    if log_ratio > -1e-17:
        return float(terms)
    return math.expm1(log_ratio * terms) / math.expm1(log_ratio)
