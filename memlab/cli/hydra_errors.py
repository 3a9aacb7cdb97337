"""Errors of Hydra and OmegaConf as one line for the user, with the nearest name or the word that is meant."""

import contextlib
import json
import re
from collections.abc import Sequence
from string import ascii_lowercase
from typing import Any

from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException, OverrideParseException
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from memlab.cli.library_values import library_word
from memlab.core.config import GROUPS, from_dict, with_own_apart
from memlab.core.errors import ConfigError, MemlabError, UnknownKey, nearest
from memlab.core.foreign_words import foreign_word
from memlab.files.conf_files import options_of

COMPOSITION_ERRORS = (HydraException, OmegaConfBaseException, YAMLError, RecursionError)
"""Exceptions for a command line, or for a file in ``--config-dir``, that cannot be composed."""

HYDRA_ERRORS = (*COMPOSITION_ERRORS, ValueError)
"""Exceptions of Hydra itself. A ValueError of memlab's own would be a bug."""

FREE_VALUE = {"seq_len": "seq_len.tokens", "batch": "batch.micro"}
"""Groups whose options are numbers -> the field that takes any other number."""


def as_one_line(error: Exception, words: Sequence[str] = ()) -> MemlabError:
    """Convert an exception of Hydra to a :class:`MemlabError`: the one that a resolver raised, or Hydra's message.

    ``words``: those of the command line.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, MemlabError):
            return cause
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, OverrideParseException):
        return ConfigError(f"Cannot read the command line: {one_line(error)}")
    key = getattr(error.__cause__, "full_key", None)
    if isinstance(error, MissingConfigException) and error.options and error.missing_cfg_file:
        return _unknown_option(error.missing_cfg_file, error.options)
    if isinstance(error, ConfigCompositionException) and key and "override" in str(error) and "hydra" not in key:
        return _unknown_key(key, words)
    if str(error).startswith(("Ambiguous value for ", "Sweep parameters ")):
        word = str(error).split("'")[1]
        return ConfigError(f"'{word}' has several values: add -m to sweep over them. A list has brackets: key=[1,2].")
    if str(error).startswith("Multiple values for "):
        group = str(error).split()[3].rstrip(".")
        return ConfigError(f"'{group}' has an option already: write {group}=<option> without +.")
    for word in words if isinstance(error, ValueError) else ():  # Hydra does not say which word holds no option
        group, _, option = word.lstrip("+").partition("=")
        if group in GROUPS and (options := options_of(group)) and option not in options:
            return _unknown_option(f"{group}/{option}", options)
    return ConfigError(one_line(error))


def with_word_here(error: UnknownKey, words: Sequence[str]) -> ConfigError:
    """Add to an unknown key the word here that has its meaning, if there is one. ``words``: the command line."""
    typed = (word.lstrip("+").partition("=") for word in words)
    deeper = (
        (key, value) for key, _, value in typed if f"{key}.".startswith(f"{error.key}.")
    )  # a.b, of which a is new
    key, value = next(deeper, (error.key, None))
    here = word_here(key, value or (error.value if isinstance(error.value, str) else json.dumps(error.value)))
    return ConfigError(f"Unknown key '{key}': here it is {here}.") if here else error


def word_here(key: str, value: str) -> str | None:
    """Return the word here for a key of another library, or of an earlier memlab; ``None`` if there is none."""
    earlier = {
        "search": f"sweep.search={value}",
        "experiment": f"+experiment={value}",
        "hardware.usd_per_hour": "hardware.usd_per_gpu_hour, the price of one GPU: divide by hardware.gpus",
    }
    return earlier.get(key) or foreign_word(key, value) or library_word(key, value)


def _unknown_key(key: str, words: Sequence[str]) -> MemlabError:
    nested: Any = None
    for part in reversed(key.split(".")):
        nested = {part: nested}
    try:
        from_dict(nested)
    except UnknownKey as error:
        known = with_word_here(error, words)
        with contextlib.suppress(UnknownKey):
            if known is error and with_own_apart(nested)["own"]:
                return ConfigError(f"{known} (A key of your own: +{key}=...)")
        return known
    except ConfigError as error:
        return error
    return ConfigError(f"Unknown key '{key}'.")


def _unknown_option(place: str, options: Sequence[str]) -> ConfigError:
    group, _, option = place.rpartition("/")
    if group == "sweep" and option in options_of("experiment"):
        hint = f"Studies are experiments: +experiment={option}."
    elif option.isdigit() and group in FREE_VALUE:
        hint = f"Set the value itself with {FREE_VALUE[group]}={option}."
    else:  # Hydra accepts no bare number as an option, so numeric options have a prefix: zero3
        numbered = [name for name in options if name.lstrip(ascii_lowercase) == option]
        hint = f"Did you mean '{numbered[0]}'?" if numbered else nearest(option, options)
    if group == "hardware":
        hint = _nearest_gpu(option, options)
        hint += " hardware.gpus=N sets their number; another GPU: docs/howto/gpu_and_price.md."
    return ConfigError(f"Unknown option '{option}' of config group '{group}'. {hint}")


def _nearest_gpu(option: str, options: Sequence[str]) -> str:
    """Make a hint: the options of the GPU that ``option`` names, or all. Between GPUs, one letter is no slip: an L4 is
    no T4."""
    gpu = re.escape(option.lower().partition("_")[0])
    of_it = [name for name in options if re.search(rf"(^|[a-z]){gpu}(?!\d)", name.partition("_")[0])]
    return nearest(option, of_it) if of_it else f"Choose one of: {', '.join(options)}."


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
