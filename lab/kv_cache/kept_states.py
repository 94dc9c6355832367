"""Recurrent states that are kept with prefixes: after these, recurrent layers can go on."""

from collections import OrderedDict
from collections.abc import Sequence

from lab.kv_cache.prefix_cache import Prefix


class KeptStates:
    """Prefixes with a recurrent state: at most ``most``. One more drops the least recently used."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._prefixes: OrderedDict[Prefix, None] = OrderedDict()  # the least recently used first

    def keep(self, prefix: Prefix, state: object) -> None:
        prefix.state = state
        self._prefixes[prefix] = None
        if len(self._prefixes) > self._most:
            self.drop(next(iter(self._prefixes)))

    def use(self, prefix: Prefix) -> object:
        """The state that is kept with a prefix."""
        self._prefixes.move_to_end(prefix)
        return prefix.state

    def drop(self, prefix: Prefix) -> None:
        prefix.state = None
        self._prefixes.pop(prefix, None)


def has_state(chain: Sequence[tuple[int, Prefix]], behind: int) -> bool:
    """True if a recurrent state is kept ``behind`` blocks before the chain's end."""
    return len(chain) > behind and chain[-1 - behind][1].state is not None
