"""From a run in the Lab to the comparison that shows what its settings gain."""

from dataclasses import replace
from urllib.parse import urlencode

from lab.config import EngineConfig, config_text
from lab.errors import LabError
from lab.settings import without_unused
from visualize.pages.compare.configurations import FORM, LANES
from visualize.run_settings import OTHER, Settings

USUAL = EngineConfig()


def against(settings: Settings) -> str:
    """The Compare page's address, relative to the Lab's, with these settings and the same without speculation or, where
    there is none, the cache alone. Nothing is measured before somebody asks for it there. One token, too few to
    compare, becomes two; too many are for that page to limit and to say. Empty if the settings are just the cache, if
    they are invalid (their run says why), and for models and prompts that only the Lab accepts."""
    try:
        config = without_unused(settings.engine_config(settings.num_blocks if settings.kv_cache else None))
        settings.sampling()
        settings.asked()
        settings.prompt.encode()  # it may contain a lone surrogate
    except (LabError, UnicodeEncodeError):
        return ""
    plain = USUAL if config.speculative == "off" else without_unused(replace(config, speculative="off"))
    if settings.pair == OTHER or settings.token_ids or settings.parse_special or config == plain:
        return ""
    keys, lines = [], []
    for name, one in (("No speculation", plain), ("Yours", config)):
        key = next((key for key, (_, known) in LANES.items() if known == one), None)
        if key and not lines:  # the page runs named settings first, and compares all others with the first
            keys.append(key)
        else:
            lines.append(f"{name}: {config_text(one)}")
    query = {"prompt": settings.prompt, "pair": settings.pair, "lanes": ",".join(keys), "own": "\n".join(lines)}
    for one in FORM.settings.values():
        value = getattr(settings, one.name, None) if one.bounds else None
        if value is not None:  # None: a seed that the engine picks, or repeats, which the Lab does not have
            query[one.name] = max(value, one.bounds[0])
    return f"compare?{urlencode(query)}"
