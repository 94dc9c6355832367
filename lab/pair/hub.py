"""The hub, asked once whether it has a model: left to itself, transformers asks six times, and logs each of them."""

from __future__ import annotations

from huggingface_hub import get_hf_file_metadata, hf_hub_url
from huggingface_hub.errors import HfHubHTTPError

from lab.pair.folder import ModelLoadError

PATIENCE = 4.0
"""Seconds for which a hub may not answer. It is asked once."""


def answers(hub: str, token: bool | None = None) -> bool:
    """Whether the hub has this model's configuration for us. Raises HfHubHTTPError where it refuses it to somebody
    without a name."""
    try:
        get_hf_file_metadata(hf_hub_url(hub, "config.json"), token=token, timeout=PATIENCE)
    except HfHubHTTPError:
        if token is False:  # it said no: what this machine's owner has kept of it is not for everybody
            raise
        return False
    except Exception:  # of any library below: nobody answered
        return False
    return True


def not_to_be_had(hub: str) -> ModelLoadError:
    """Nor is it in the local cache."""
    return ModelLoadError(
        f"There is no configuration to be had of {hub}. A hub id is owner/name, as Qwen/Qwen3-8B; it needs a network, "
        "or the model in the local cache, and a model that is open to all and brings no code of its own. A folder with "
        "config.json and safetensors needs none, nor do the models that are part of the lab."
    )
