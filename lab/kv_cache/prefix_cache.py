"""Finds cached blocks by the tokens that lead up to and fill them.

Keys and values at a position depend on every token before it, so a full block is identified by its own tokens and the
block before it: a chain that begins with the identity of the models that computed it. A hash of the chain finds a
candidate; then the tokens themselves are compared, so that a collision costs a miss and never a wrong text (hash chains
over blocks: vLLM's automatic prefix caching; Zheng et al., 2312.07104, keep the same prefixes in a radix tree).

Lesson 6, sharing prefixes.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence


class Prefix:
    """Everything up to the end of one full block; a link in an immutable chain. ``state``: that of recurrent layers
    there, while it is kept; None: it is not (``lab.kv_cache.recurrent_state``)."""

    __slots__ = ("digest", "parent", "state", "tokens")

    def __init__(self, tokens: tuple[Hashable, ...], parent: Prefix | None) -> None:
        self.tokens = tokens
        self.parent = parent
        self.state: object = None
        self.digest = digest(parent.digest if parent else 0, tokens)

    @classmethod
    def root(cls, identity: Hashable) -> Prefix:
        """The beginning of one set of models' chains; ``identity`` takes the place of tokens."""
        return cls((identity,), None)

    def then(self, tokens: Sequence[int]) -> Prefix:
        return Prefix(tuple(tokens), self)

    def same(self, other: Prefix) -> bool:
        """True if the two are equal, token by token. Chains that share a link are compared only back to it."""
        one, two = self, other
        while one is not two:
            if one.tokens != two.tokens:  # as at a root, whose identity is no block's tokens
                return False
            one, two = one.parent, two.parent
        return True


def digest(parent: int, tokens: tuple[Hashable, ...]) -> int:
    return hash((parent, tokens))


class PrefixIndex:
    """Index from prefix to block and back: at most one block per digest."""

    def __init__(self) -> None:
        self._block: dict[int, int] = {}  # digest -> block
        self._prefix: dict[int, Prefix] = {}  # block -> prefix

    def __contains__(self, block: int) -> bool:
        return block in self._prefix

    def prefix(self, block: int) -> Prefix:
        return self._prefix[block]

    def find(self, prefix: Prefix) -> int | None:
        block = self._block.get(prefix.digest)
        return block if block is not None and self._prefix[block].same(prefix) else None

    def add(self, block: int, prefix: Prefix) -> bool:
        """Add a block. False if another block has this digest already: then this one cannot be found."""
        if prefix.digest in self._block:
            return False
        self._block[prefix.digest] = block
        self._prefix[block] = prefix
        return True

    def remove(self, block: int) -> None:
        prefix = self._prefix.pop(block)
        del self._block[prefix.digest]
