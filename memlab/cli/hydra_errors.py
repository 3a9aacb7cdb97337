"""Errors of Hydra and OmegaConf as one line for the user, with the nearest name or the word that is meant."""

import contextlib
import json
import re
from collections.abc import Sequence
from string import ascii_lowercase
from typing import Any

from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException, OverrideParseException
from omegaconf import OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException
from yaml import Mark, MarkedYAMLError, YAMLError

from memlab.cli.library_values import library_word
from memlab.core.config import GROUPS, Config
from memlab.core.config_values import check_spelling, from_dict, nested, with_own_apart
from memlab.core.errors import ConfigError, MemlabError, UnknownKey, nearest
from memlab.core.foreign_words import foreign_word
from memlab.files.conf_files import options_of

COMPOSITION_ERRORS = (HydraException, OmegaConfBaseException, YAMLError, RecursionError)
"""Exceptions for a command line, or for a file in ``--config-dir``, that cannot be composed."""

HYDRA_ERRORS = (*COMPOSITION_ERRORS, ValueError)
"""Exceptions of Hydra itself. A ValueError of memlab's own would be a bug."""

FREE_VALUE = {"seq_len": "seq_len.tokens", "batch": "batch.micro"}
"""Groups whose options are numbers -> the field that takes any other number."""


PLUGINS = ("ax", "joblib", "nevergrad", "optuna", "ray", "rq", "submitit")
"""Plugins of Hydra, each the package ``hydra-NAME-launcher`` or ``hydra-NAME-sweeper``."""


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
        return _unreadable(error.override, error)
    if isinstance(error, MarkedYAMLError) and error.problem_mark:
        return _broken_file(error, error.problem_mark)
    key = getattr(error.__cause__, "full_key", None)
    if isinstance(error, MissingConfigException) and error.options and error.missing_cfg_file:
        return _unknown_option(error.missing_cfg_file, error.options)
    if isinstance(error, ConfigCompositionException) and key and "override" in str(error) and "hydra" not in key:
        return _unknown_key(key, words, getattr(error.__cause__, "parent_node", None))
    if isinstance(error, ConfigKeyError | ConfigAttributeError) and error.full_key:  # of a point of a sweep
        return _unknown_key(error.full_key, words, error.parent_node)
    if refusal := _of_defaults(error):
        return refusal
    if unset := re.search(r"Environment variable '(.+?)' not found", str(error)):
        variable, place = unset[1], getattr(error, "full_key", None) or "a value"
        return ConfigError(
            f"'{place}' takes the environment variable {variable}, which is not set. Set it, or write a default behind "
            f"a comma: ${{oc.env:{variable},<default>}}."
        )
    if str(error).startswith(("Ambiguous value for ", "Sweep parameters ")):
        word = str(error).split("'")[1]
        return ConfigError(f"'{word}' has several values: add -m to sweep over them. A list has brackets: key=[1,2].")
    if str(error).startswith("Multiple values for "):
        group = str(error).split()[3].rstrip(".")
        if not any(word.startswith(f"+{group}") for word in words):
            return ConfigError(f"A file adds '{group}', which has an option already: - override /{group}: <option>")
        return ConfigError(f"'{group}' has an option already: write {group}=<option> without +.")
    for word in words if isinstance(error, ValueError) else ():  # Hydra does not say which word holds no option
        group, _, option = word.lstrip("+").partition("=")
        if group in GROUPS and (options := options_of(group)) and option not in options:
            return _unknown_option(f"{group}/{option}", options)
    replaces_conf = any(word.startswith(("--config-path", "-cp")) for word in words)
    hint = " --config-path replaces memlab's own conf/: --config-dir adds a folder of yours to it." * replaces_conf
    return ConfigError(one_line(error) + hint)


def _unreadable(word: str, error: Exception) -> ConfigError:
    """Say what is wrong with a word of the command line, which Hydra's parser does not say."""
    key, equals, value = word.partition("=")
    if not equals and re.fullmatch(r"[+~]*[a-z_][\w./@]*", key):
        why = f"it has no value. Write {key}=<value>, without spaces."
    elif not equals:
        why = f"a word is <key>=<value>, without spaces. Write <key>={key.lstrip('+~')}."
    elif sum(map(value.count, "([{")) != sum(map(value.count, ")]}")):
        why = "a bracket is not closed, or not opened."
    elif re.search(r"(^|,)\s*(,|$)", value):
        why = "a value is missing beside a comma. Write them all, as in seed=1,2; an empty text is ''."
    elif evaluated := re.search(r"while evaluating '.*?': (.+?)\s+See https", str(error), re.DOTALL):
        why = f"{'. '.join(evaluated[1].splitlines())}."
    else:
        why = f"""its value needs quotes, which the shell must keep: "{key}='{value}'"."""
    return ConfigError(f"Cannot read '{word}': {why}")


def _broken_file(error: MarkedYAMLError, mark: Mark) -> ConfigError:
    context = f", {error.context}" if error.context else ""
    began = f" that begins in line {error.context_mark.line + 1}" if context and error.context_mark else ""
    return ConfigError(f"{mark.name}, line {mark.line + 1}: no valid YAML: {error.problem}{context}{began}.")


def _of_defaults(error: Exception) -> ConfigError | None:
    """Say what an experiment's file lacks so that its defaults are found at the root; ``None`` for other mistakes."""
    file, *quoted = re.findall("'(.+?)'", str(error)) if str(error).startswith("In '") else [""]
    folder = file.rpartition("/")[0]
    for place in quoted if folder else ():  # experiment/zero_stage, or zero_stage@experiment.zero_stage
        name, _, package = place.partition("@")
        group = name.removeprefix(f"{folder}/").partition("/")[0]
        if name.startswith(f"{folder}/") and group in GROUPS:
            return ConfigError(f"{file}.yaml: '{group}' needs a slash in the defaults: - override /{group}: <option>")
        if package.startswith(f"{folder}."):
            return ConfigError(f"The first line of {file}.yaml must be '# @package _global_': it sets any key.")
    return None


def with_word_here(error: UnknownKey, words: Sequence[str]) -> ConfigError:
    """Add to an unknown key the word here that has its meaning, if there is one. ``words``: the command line, whose
    other words of this kind are named too."""
    typed = dict(word.lstrip("+").partition("=")[::2] for word in words)
    key = next((key for key in typed if f"{key}.".startswith(f"{error.key}.")), error.key)  # a.b, of which a is new
    value = typed.get(key) or (error.value if isinstance(error.value, str) else json.dumps(error.value))
    others = {each: text for each, text in typed.items() if each.partition(".")[0] not in {*vars(Config()), "hydra"}}
    here = {each: word for each, text in {key: value, **others}.items() if (word := word_here(each, text))}
    told = (f"Unknown key '{each}': here it is {word}." for each, word in here.items())
    return ConfigError(" ".join(told)) if key in here else error


def word_here(key: str, value: str) -> str | None:
    """Return the word here for a key of another library, or of an earlier memlab; ``None`` if there is none."""
    earlier = {
        "search": f"sweep.search={value}",
        "experiment": f"+experiment={value}",
        "hardware.usd_per_hour": "hardware.usd_per_gpu_hour, the price of one GPU: divide by hardware.gpus",
    }
    return earlier.get(key) or foreign_word(key, value) or library_word(key, value)


def _unknown_key(key: str, words: Sequence[str], beside: Any) -> MemlabError:
    """Name the word that an unknown key stands for. ``beside``: the node that lacks it."""
    if "." in key and key.partition(".")[0] not in vars(Config()) and OmegaConf.is_dict(beside):
        return ConfigError(f"{UnknownKey(key, None, map(str, beside))} (A key of your own: +{key}=...)")
    alone = nested({key: {}})
    own = with_own_apart(alone)["own"]
    try:
        from_dict(alone)
    except UnknownKey as error:
        known = with_word_here(error, words)
        with contextlib.suppress(UnknownKey):
            if known is error and own:
                check_spelling(own)
                return ConfigError(f"{known} (A key of your own: +{key}=...)")
        return known
    except ConfigError as error:
        return error
    return ConfigError(f"Unknown key '{key}'. A key of your own: +<name>=<value>.")


def _unknown_option(place: str, options: Sequence[str]) -> ConfigError:
    group, _, option = place.rpartition("/")
    if group == "sweep" and option in options_of("experiment"):
        hint = f"Studies are experiments: +experiment={option}."
    elif option.isdigit() and group in FREE_VALUE:
        hint = f"Set the value itself with {FREE_VALUE[group]}={option}."
    else:  # Hydra accepts no bare number as an option, so numeric options have a prefix: zero3
        numbered = [name for name in options if name.lstrip(ascii_lowercase) == option]
        hint = f"Did you mean '{numbered[0]}'?" if numbered else nearest(option, options)
    if group in ("hydra/launcher", "hydra/sweeper") and (name := option.partition("_")[0]) in PLUGINS:
        plugin = f"hydra-{name}-{group.removeprefix('hydra/')}"
        hint = f"It is of Hydra's plugin {plugin}, which is not installed: pip install {plugin} (docs/sweeps.md)."
    if group == "hardware":
        hint = nearest_gpu(option, options)
        hint += " hardware.gpus=N sets their number; another GPU: docs/howto/gpu_and_price.md."
    return ConfigError(f"Unknown option '{option}' of config group '{group}'. {hint}")


def nearest_gpu(option: str, options: Sequence[str]) -> str:
    """Make a hint: the options of the GPU that ``option`` names, or all. Between GPUs, one letter is no slip: an L4 is
    no T4."""
    gpu = re.escape(option.lower().partition("_")[0])
    of_it = [name for name in options if re.search(rf"(^|[a-z]){gpu}(?!\d)", name.partition("_")[0])]
    return nearest(option, of_it) if of_it else f"Choose one of: {', '.join(options)}."


def one_line(error: Exception) -> str:
    """Shorten a message of Hydra or OmegaConf, which spans many lines, to its first two lines and the key."""
    if isinstance(error, RecursionError):
        return "a value is nested too deeply to be read"
    text = f"{str(error).partition('Config search path:')[0]}\n{error.__cause__ or ''}"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    wanted = [line for line in lines if not line.startswith(("object_type=", "reference_type=", "full_key:"))]
    keys = [line.removeprefix("full_key:").strip() for line in lines if line.startswith("full_key:")]
    message = " ".join(wanted[:2])
    return f"{message} (at {keys[0]})" if keys and keys[0] not in message else message
