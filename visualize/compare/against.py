"""From a run in the Lab to the comparison that says what its settings bring."""

from __future__ import annotations

from dataclasses import fields, replace
from urllib.parse import urlencode

from lab.config import EngineConfig, LabError
from lab.options import config_text
from visualize.compare.lanes import BOUNDS, LANES
from visualize.run.readouts import NEEDS
from visualize.run.settings import CHOICES, OTHER, Settings, bounded

USUAL = EngineConfig()


def against(settings: Settings) -> str:
    """The Compare page's address, beside the Lab's, with these settings and the same without guesses; the cache alone,
    where nobody guesses. What is out of that page's bounds goes to the nearest that is not. Empty where they are just
    the cache, where a run of them says what is wrong with them, and for models that only the Lab takes."""
    try:
        config = _relevant(settings.engine_config(num_blocks=_small_pool(settings)))
        settings.sampling()
        bounded(settings.prompt).encode()  # there may be half a character in it
    except (LabError, UnicodeEncodeError):
        return ""
    plain = USUAL if config.speculative == "off" else _relevant(replace(config, speculative="off"))
    if settings.pair == OTHER or config == plain:
        return ""
    keys, lines = [], []
    for one in (plain, config):
        key = next((key for key, (_, known) in LANES.items() if known == one), None)
        if key and not lines:  # the page runs what it has a name for first, and holds all else against the first
            keys.append(key)
        else:
            lines.append(config_text(one))
    query = {"prompt": settings.prompt, "pair": settings.pair, "lanes": ",".join(keys), "own": "\n".join(lines)}
    for name, (low, high) in BOUNDS.items():
        value = getattr(settings, name, None)
        if value is not None:  # a seed that the engine picks; how often is that page's own
            query[name] = min(max(value, low), high)
    return f"compare?{urlencode(query | {'run': 1})}"


def _small_pool(settings: Settings) -> int | None:
    """Blocks, where a person chose fewer than the Lab has at most; None: as many as the engine gives by itself."""
    fewer = settings.cache and settings.pool_size in CHOICES["pool_size"] and settings.pool_size < Settings.pool_size
    return settings.pool_size // settings.block_size if fewer else None


def _relevant(config: EngineConfig) -> EngineConfig:
    """The same, with what only matters to others who guess at its default."""
    others = [name for name, who in NEEDS.items() if config.speculative not in who]
    return replace(config, **{field.name: field.default for field in fields(config) if field.name in others})
