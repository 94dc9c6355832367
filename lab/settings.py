"""Names of settings."""

from __future__ import annotations

from collections.abc import Mapping

OLD_NAMES = {
    "cache": "kv_cache",
    "kv_format": "kv_dtype",
    "prefix_caching": "enable_prefix_caching",
    "speculation": "speculative",
    "gamma": "num_speculative_tokens",
    "synthetic_rate": "synthetic_acceptance_rate",
    "pool_blocks": "num_blocks",
    "pool_size": "num_blocks",
    "distributions": "logprobs",
}
"""Settings' names in links from before they had the engine's, and the names now."""


def with_new_names(link: Mapping[str, str]) -> dict[str, str]:
    """``link`` with the settings' names of now. A pool's size was in tokens, and distributions were on or off."""
    given = {name: value for name, value in link.items() if name not in OLD_NAMES}
    for name in link.keys() & OLD_NAMES.keys():
        value = link[name]
        if name == "pool_size" and value.isdecimal() and len(value) < 8:
            size = link.get("block_size", "16")
            value = str(int(value) // int(size)) if size in ("4", "8", "16", "32", "64") else value
        if name == "distributions":
            value = {"1": "5"}.get(value, value)
        given.setdefault(OLD_NAMES[name], value)
    return given
