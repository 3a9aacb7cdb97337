"""Stand-in for uploads to the Hugging Face Hub: each is answered as after a healthy upload, and listed.

Replaces the methods of ``huggingface_hub.HfApi`` that change something on the Hub (checked with huggingface_hub 2.4),
their functions of the same names, and ``push_to_hub`` of datasets. Allocates nothing and counts nothing.
"""

import functools
import inspect
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from memlab.simulator.rank.stand_ins import GpuModel, Recorder, StandIn
from memlab.system.sandbox import ANSWERED, REPORT, VARIABLE

USER = "you"
"""Stands for the name of the user on the Hub, which only the Hub knows."""

COMMITS = ("create_commit", "delete_file", "delete_files", "delete_folder", "upload_file", "upload_folder")
NO_RESULT = (
    *("create_branch", "create_tag", "delete_branch", "delete_repo", "delete_tag", "move_repo", "preupload_lfs_files"),
    *("super_squash_history", "update_repo_settings", "upload_large_folder"),
)

FOLDERS = {None: "", "model": "", "dataset": "datasets/", "space": "spaces/"}
"""Type of a repository -> the beginning of its path on the Hub."""


def stand_in(gpu: GpuModel) -> StandIn:
    return StandIn(
        changes={
            "huggingface_hub.hf_api": _answer_uploads,
            "datasets.arrow_dataset": functools.partial(_answer_datasets, "Dataset"),
            "datasets.dataset_dict": functools.partial(_answer_datasets, "DatasetDict"),
        }
    )


def _answer_uploads(hub: ModuleType, recorder: Recorder) -> None:
    for names, answer in ((COMMITS, _commit), (("create_repo",), _repository), (NO_RESULT, lambda *asked: None)):
        for name in names:
            if hasattr(hub.HfApi, name):
                setattr(hub.HfApi, name, _answered(getattr(hub.HfApi, name), functools.partial(answer, hub)))
                if hasattr(hub, name):
                    setattr(hub, name, getattr(hub.api, name))


def _answer_datasets(kind: str, datasets: ModuleType, recorder: Recorder) -> None:
    from huggingface_hub import hf_api

    def commit(arguments: Mapping[str, Any]) -> Any:
        return _commit(hf_api, {**arguments, "repo_type": "dataset"})

    owner = getattr(datasets, kind)
    owner.push_to_hub = _answered(owner.push_to_hub, commit)


def _answered(method: Callable[..., Any], answer: Callable[[Mapping[str, Any]], Any]) -> Callable[..., Any]:
    """Return a method that takes the same arguments and gives an answer, in a future where it is asked for one."""
    signature = inspect.signature(method)

    @functools.wraps(method)
    def call(*args: Any, **options: Any) -> Any:
        arguments = signature.bind(*args, **options).arguments
        _list(method.__name__, arguments)
        return args[0].run_as_future(answer, arguments) if arguments.get("run_as_future") else answer(arguments)

    return call


def _url(hub: ModuleType, arguments: Mapping[str, Any]) -> str:
    name = arguments["repo_id"]
    return f"{hub.constants.ENDPOINT}/{FOLDERS[arguments.get('repo_type')]}{name if '/' in name else f'{USER}/{name}'}"


def _repository(hub: ModuleType, arguments: Mapping[str, Any]) -> Any:
    return hub.RepoUrl(_url(hub, arguments))


def _commit(hub: ModuleType, arguments: Mapping[str, Any]) -> Any:
    """Return a commit, of which no repository has the number."""
    message, description = (arguments.get(name) or "" for name in ("commit_message", "commit_description"))
    oid = "0" * 40
    return hub.CommitInfo(f"{_url(hub, arguments)}/commit/{oid}", message, description, oid)


def _list(name: str, arguments: Mapping[str, Any]) -> None:
    """Add a line to the report of the sandbox."""
    what = arguments.get("folder_path") or arguments.get("path_in_repo")
    target = arguments.get("repo_id") or arguments.get("to_id") or ""
    with (Path(os.environ[VARIABLE]) / REPORT / ANSWERED).open("a", encoding="utf-8") as report:
        report.write(" ".join(filter(None, [name, str(what or ""), f"to {target}" if what else target])) + "\n")
