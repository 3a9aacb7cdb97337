"""Missing files of a script, as weights, tokenizers and data: which one, and what is enough for a prediction."""

import os
import re
from collections.abc import Iterator
from traceback import walk_tb
from types import FrameType

_NAMES = ("repo_id", "path_or_repo_id", "pretrained_model_name_or_path")
"""Names under which functions of huggingface_hub, transformers and peft keep the name of a model."""

_OF_THE_HUB = (
    *("huggingface.co", "Hugging Face Hub", "on the Hub", "disk cache", "instantiate the backend tokenizer"),
    *("not appear to have a file named", "Can't load tokenizer"),
)
"""Parts of the messages of huggingface_hub, transformers and datasets about files that are not there."""

_NO_WEIGHTS = ("*.json", "*.txt", "*.model", "*.jinja", "*.py")
"""Files of a repository that a prediction needs: configuration, tokenizer and code."""

_NO_NETWORK = ("URLError", "ConnectionError", "ConnectError", "ClientConnectorError", "gaierror", "CalledProcessError")
"""Names of exceptions that end a download."""

_URL = re.compile(r"(?:https?|ftp|s3|gs)://[^\s'\"<>]+")
_NOT_THERE = re.compile(r"(?:No such file or directory:|Unable to find) '?([^'\n]+)'?$", re.MULTILINE)

_MODEL = "Its configuration and tokenizer are enough"
_OR_LOAD = "or let the script load it: memlab predict --network"


def missing_file(error: BaseException) -> str | None:
    """Write what is missing and what is enough, if a missing file has raised ``error``."""
    told = str(error)
    if any(words in told for words in _OF_THE_HUB):
        return _missing_from_the_hub(error)
    if type(error).__name__ in _NO_NETWORK or "no internet connection" in told:
        return _missing_download(error)
    found = _NOT_THERE.search(told)
    if not isinstance(error, FileNotFoundError) or not found or _asks_for_a_program(error):
        return None
    return (
        f"{found[1]} is not here. Values do not count: the weights of an untrained model are enough there, or a few "
        "samples of the data with the longest among them"
    )


def _missing_from_the_hub(error: BaseException) -> str | None:
    frames = list(_innermost_first(error))
    for frame in frames:
        variables = frame.f_locals
        if frame.f_code.co_name == "load_dataset":
            name = variables.get("path")
            return (
                f"the data set {name} is not in the cache of datasets. Load it once: "
                f"python -c \"import datasets; datasets.load_dataset('{name}')\""
            )
        name = next((variables[each] for each in _NAMES if each in variables), None)
        if not isinstance(name, str | os.PathLike):
            continue
        if os.path.isdir(name):
            return f"{name} is not whole: config.json or the files of the tokenizer are missing. {_MODEL}"
        file = variables.get("filename")
        if isinstance(file, str) and not any("from_pretrained" in each.f_code.co_name for each in frames):
            kind = variables.get("repo_type")
            of_kind = f" --repo-type {kind}" if kind not in (None, "model") else ""
            return f"{file} of {name} is not in the Hugging Face cache: hf download {name} {file}{of_kind}"
        patterns = " ".join(f"--include '{pattern}'" for pattern in _NO_WEIGHTS)
        return (
            f"{name} is no folder here, and not whole in the Hugging Face cache. {_MODEL}: "
            f"hf download {name} {patterns}"
        )
    return None


def _missing_download(error: BaseException) -> str | None:
    for frame in _innermost_first(error):
        variables, function = frame.f_locals, frame.f_code.co_name
        if function == "load_state_dict_from_url":
            return (
                f"{os.path.basename(variables['url'])} is not loaded: a prediction has no network. Shapes are enough: "
                f"leave the weights out, or save the untrained model's as {variables.get('cached_file')}"
            )
        if function == "load" and isinstance(variables.get("repo_or_dir"), str):
            return (
                f"{variables['repo_or_dir']} is not in the cache of torch.hub. Clone it and name its folder, {_OR_LOAD}"
            )
    texts = [str(error), *(str(value) for frame in _innermost_first(error) for value in _addresses(frame))]
    url = next(filter(None, map(_URL.search, texts)), None)
    if url is None:
        return None
    return (
        f"{url[0]} is not loaded: a prediction has no network. Put the file where the script looks for it, {_OR_LOAD}"
    )


def _addresses(frame: FrameType) -> Iterator[object]:
    return (value for name, value in frame.f_locals.items() if name in ("url", "fullurl", "uri", "urlpath", "args"))


def _innermost_first(error: BaseException) -> Iterator[FrameType]:
    return (frame for frame, _ in reversed(list(walk_tb(error.__traceback__))))


def _asks_for_a_program(error: BaseException) -> bool:
    return any(frame.f_code.co_filename.endswith("/subprocess.py") for frame in _innermost_first(error))
