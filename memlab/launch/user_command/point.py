"""One point of a sweep of the user's own command: filled in, run, and recorded beside what was composed."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from memlab.attach.options import PROFILED_STEPS, PROFILER_WARMUP
from memlab.core.command_template import DEEPSPEED_JSON, command_environment, filled, flat, parse
from memlab.core.config import Config, to_dict
from memlab.core.record import Record
from memlab.launch.command import free_port
from memlab.launch.launch_control import LaunchControl
from memlab.launch.streams import ToLog
from memlab.launch.user_command.found_config import FoundConfig, found_config, from_values
from memlab.launch.user_command.measure import keep_what_was_found
from memlab.launch.user_command.records import command_record
from memlab.launch.user_command.supervise import Command, Finished, supervise
from memlab.runs.folder import RunFolder
from memlab.runs.job import Job
from memlab.runs.operator_profile import PROFILED_RANK, keep_operators
from memlab.system.environment import fingerprint
from memlab.system.machine import Gpu, Machine

OUTPUT = "output"
"""Folder inside the run folder that ``{run_dir}`` stands for: the script's files stay apart from memlab's."""

OF_MEMLAB = ("measure", "predict", "sweep", "mode", "name", "force", "training")
"""Groups and keys that memlab itself carries out: the composed value is what happened."""

IN_THE_JSON = ("zero_stage", "offload")
"""Groups that the DeepSpeed JSON always holds."""

UNLESS_AUTO = ("precision", "batch", "optimizer")
"""Groups that it holds too with ``training.auto=false``."""


def launch_command(job: Job, machine: Machine, gpus: Sequence[Gpu], control: LaunchControl) -> Record:
    """Run the command of a point and write its record."""
    config, folder = job.config, job.folder
    words = filled(config, folder.path / RunFolder.DEEPSPEED, folder.path / OUTPUT, free_port())
    job.start(words)
    environment = command_environment(config, os.environ)
    if config.hardware.device == "cuda":
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(gpu.id for gpu in gpus[: job.plan.ranks_per_node])
    steps = config.measure.warmup + config.measure.steps
    last, profile = steps, None
    if config.measure.profile:
        last, profile = steps + PROFILER_WARMUP + PROFILED_STEPS, steps
    command = Command(words, environment, ToLog(folder.launcher_log), last, profile=profile)
    finished = supervise(command, folder, lambda: config.measure.timeout_s, control.reason_to_end, control.stop)
    finished = with_warmup(finished, config.measure.warmup)
    found = found_config(finished.ranks, finished.rows, config.training.command)
    merged, disagreements = beside(config, job.plan.choices, found)
    record = command_record(finished, merged, words, steps, machine)
    record.command["disagreements"] = disagreements
    record = replace(record, run_id=job.plan.run_id, fingerprint=fingerprint(job.plan, machine))
    keep_what_was_found(finished.ranks, folder)
    folder.finish(record)
    keep_operators(folder, PROFILED_RANK)
    if finished.survivors:
        control.stop.set()  # they may still hold memory, which would change every later measurement
    return record


def with_warmup(finished: Finished, warmup: int) -> Finished:
    """Count the first ``warmup`` steps as warm-up, as in memlab's own runs; the ranks know only of the first step."""
    ranks = []
    for rank in finished.ranks:
        seconds = [*rank["warmup_seconds"], *rank["step_seconds"]]
        ranks.append({**rank, "warmup_seconds": seconds[:warmup], "step_seconds": seconds[warmup:]})
    return replace(finished, ranks=ranks)


def beside(config: Config, choices: Mapping[str, str], found: FoundConfig) -> tuple[FoundConfig, list[dict[str, Any]]]:
    """Put what was composed beside what was found. Returns the configuration of the record, and the disagreements.

    What the script used counts. A composed value counts for what memlab itself carries out, for the machine, and for a
    key that has a place in the command and was not found out: the command was given it. Every other key is unknown.
    """
    composed, places = flat(to_dict(config)), parse(config.training.command).places
    given = {key for key in composed if key in places or key in ("allocator.conf", "hardware.gpus")}
    if DEEPSPEED_JSON in places:
        groups = IN_THE_JSON if config.training.auto else IN_THE_JSON + UNLESS_AUTO
        given |= {key for key in composed if key.partition(".")[0] in groups}
    disagreements = [
        {"key": key, "composed": composed[key], "found": value}
        for key, value in found.values.items()
        if key in given and composed[key] not in (value, None)
    ]
    own = {key: value for key, value in composed.items() if key.partition(".")[0] in OF_MEMLAB}
    passed = {key: value for key, value in composed.items() if key in places or key.startswith("hardware.")}
    merged = from_values({**passed, **found.values, **own, "measure.protocol": "cold"})
    doubtful = {key.partition(".")[0] for key in (*merged.unknown, *(each["key"] for each in disagreements))}
    agreed = {group: option for group, option in choices.items() if group not in doubtful}
    return replace(merged, choices={**merged.choices, **agreed}), disagreements
