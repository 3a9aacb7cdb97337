"""Errors of Hydra and OmegaConf as one line for the user."""

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from memlab.core.errors import ConfigError, MemlabError

COMPOSITION_ERRORS = (HydraException, OmegaConfBaseException, YAMLError, RecursionError)
"""Exceptions raised for a command line, or for a file in ``--config-dir``, that cannot be composed."""


def as_one_line(error: Exception) -> MemlabError:
    """Convert an exception of Hydra to a :class:`MemlabError`: the one that a resolver raised, or Hydra's message."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, MemlabError):
            return cause
        cause = cause.__cause__ or cause.__context__
    return ConfigError(one_line(error))


def one_line(error: Exception) -> str:
    """Shorten a message of Hydra or OmegaConf, which spans many lines, to its first two lines and the key."""
    if isinstance(error, RecursionError):
        return "a value is nested too deeply to be read"
    text = f"{error}\n{error.__cause__ or ''}"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    wanted = [line for line in lines if not line.startswith(("object_type=", "reference_type=", "full_key:"))]
    keys = [line.removeprefix("full_key:").strip() for line in lines if line.startswith("full_key:")]
    message = " ".join(wanted[:2])
    return f"{message} (at {keys[0]})" if keys and keys[0] not in message else message
