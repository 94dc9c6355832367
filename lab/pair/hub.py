"""Asks the hub once whether it has a model: left to itself, transformers asks six times and logs each attempt."""

from __future__ import annotations

from huggingface_hub import get_hf_file_metadata, hf_hub_url
from huggingface_hub.errors import EntryNotFoundError, GatedRepoError, HfHubHTTPError, RepositoryNotFoundError
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME

from lab.config import in_short
from lab.pair.folder import HOLDS, ModelLoadError

PATIENCE = 4.0
"""Seconds to wait for the hub's answer. It is asked once."""
LOG_IN = "log in here with `hf auth login`, or set HF_TOKEN"


def withheld(hub: str, token: bool | None = None, file: str = "config.json") -> Exception | None:
    """Why the hub does not give out this file of a model. None: it does.

    Raises:
        HfHubHTTPError: it refuses an anonymous request (``token`` False).
    """
    try:
        get_hf_file_metadata(hf_hub_url(hub, file), token=token, timeout=PATIENCE)
    except HfHubHTTPError as error:
        if token is False:  # refused: the copy that this machine's owner has cached is not for everybody
            raise
        return error
    except Exception as error:  # from any library underneath: nobody answered
        return error
    return None


def refuse_withheld_weights(hub: str, name: str) -> None:
    """Check that the hub gives out a model's weights: transformers reports any refusal as a model without weights.

    Raises:
        ModelLoadError: the hub refuses them, or does not answer.
    """
    for file in SAFE_WEIGHTS_NAME, SAFE_WEIGHTS_INDEX_NAME:
        reason = withheld(hub, file=file)
        if reason is None:
            return
        if not isinstance(reason, EntryNotFoundError):
            status = reason.response.status_code if isinstance(reason, HfHubHTTPError) else None
            answer = f"answered {status}" if status else "gave no answer"
            advice = f"If you have access to it, {LOG_IN}." if status in (401, 403) else "Load it again in a minute."
            raise ModelLoadError(
                f"{name} could not be loaded: the hub {answer} when asked for its weights. {advice} "
                f"({in_short(reason)})"
            )


def not_to_be_had(hub: str, reason: Exception | None = None) -> ModelLoadError:
    """The error for a model that is not in the local cache either. ``reason``: see ``withheld``, if it may be told."""
    if isinstance(reason, GatedRepoError):  # a subclass of the next
        return ModelLoadError(
            f"{hub} is given only to those who have asked for it. Accept its conditions on its hub page, then {LOG_IN}."
        )
    if isinstance(reason, RepositoryNotFoundError):
        return ModelLoadError(
            f"The hub has no model {hub}, or shows it only to some. Check the spelling, which is owner/name; for a "
            f"private model {LOG_IN}."
        )
    if isinstance(reason, EntryNotFoundError):
        return ModelLoadError(f"There is no config.json in {hub}. {HOLDS}")
    return ModelLoadError(
        f"The configuration of {hub} could not be fetched. A hub id is owner/name, like Qwen/Qwen3-8B; it needs a "
        "network, or the model in the local cache, and a model that is open to all and brings no code of its own. A "
        "folder with "
        "config.json and safetensors needs none, nor do the models that are part of the lab."
    )
