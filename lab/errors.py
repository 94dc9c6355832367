"""Errors that the user can fix, with a message that names the way out."""


class LabError(Exception):
    """An error that the user can fix. The message says what is wrong and what would be right."""


class ConfigError(LabError, ValueError):
    """A setting, or a combination of settings, that makes no sense."""


class PromptError(LabError, ValueError):
    """A prompt that cannot be decoded: empty, or longer than the model or the pool can hold."""


class UnsupportedModelError(LabError):
    """A model or a pair of models this engine would decode wrongly, named with the reason."""


class PoolExhaustedError(LabError):
    """The block pool has too few free blocks for the next step."""
