"""``memlab measure``: one command of the user's own, run in the terminal as it is, and its run folder.

The same record is made for one point of a sweep of such a command: filled in, run, and recorded with what was composed.
"""

import math
import os
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from statistics import mean
from typing import Any

import memlab
from memlab.core.command_template import DEEPSPEED_JSON, TRAINING_ARGS, command_environment, filled, given, template
from memlab.core.config_values import flat, to_dict
from memlab.core.errors import FolderError, MemlabError
from memlab.core.growth import with_growth
from memlab.core.plan import Plan, config_hash
from memlab.core.record import Record, arguments_of, first_engine
from memlab.core.summary import Work, fields_of_ranks, slowest
from memlab.files.training_data import training_data
from memlab.launch.launch_control import LaunchControl
from memlab.launch.launcher_line import free_port
from memlab.launch.orphans import exclusively
from memlab.launch.streams import ToLog, ToTerminal
from memlab.launch.user_command.found_config import found_values, plan_found
from memlab.launch.user_command.supervise import Finished, supervise
from memlab.meters.options import PROFILED_STEPS, PROFILER_WARMUP, MeterOptions
from memlab.runs.folder import RunFolder
from memlab.runs.job import Job, record_of
from memlab.runs.operator_profile import PROFILED_RANK, keep_operators
from memlab.runs.step_rows import for_record, rows_over_ranks
from memlab.system.environment import describe_machine, fingerprint, hashed
from memlab.system.machine import Gpu, Machine, detect


def command_record(
    plan: Plan,
    ranks: Sequence[dict[str, Any]],
    rows: Mapping[int, Sequence[dict[str, Any]]],
    seconds: float,
    facts: Mapping[str, Any],
    machine: Machine,
    **fields: Any,
) -> Record:
    """Build the record of a command that was measured or predicted.

    ``ranks``: their files. ``rows``: rank -> the rows of its steps. ``seconds``: how long the command ran. ``facts``:
    ``Record.command``. ``fields``: as of :func:`record_of`; they count before those that follow from the files.
    """
    steps = rows_over_ranks(rows)
    measured = steps[len(slowest(ranks, "warmup_seconds")) :]
    found = fields_of_ranks(plan.config, ranks, seconds, work_of(measured))
    environment = environment_of(ranks, machine)
    found["fingerprint"] = hashed([config_hash(plan.config, plan.unknown_config), environment])
    fields["steps"] = {**found["steps"], "rows": for_record(steps), **fields.get("steps", {})}
    command = {"words": [], "exit_code": 0, "steps": None, "disagreements": [], **facts}
    return with_growth(record_of(plan, environment, command=command, **(found | fields)))


def work_of(steps: Sequence[Mapping[str, Any]]) -> Work:
    """Return the mean samples and tokens of these steps; ``steps``: their rows over all ranks."""
    figures = ([row[key] for row in steps] for key in ("samples", "tokens"))
    return Work(*(mean(each) if each and None not in each else None for each in figures))


def environment_of(ranks: Sequence[Mapping[str, Any]], machine: Machine) -> dict[str, Any]:
    """Return the facts that a measurement depends on, of the command's own interpreter."""
    first = ranks[0] if ranks else {"attached": {}, "runtime": {}}
    facts = first["attached"]
    return {
        "memlab": memlab.__version__,
        **(facts.get("versions") or {}),
        **describe_machine(machine),
        **first.get("runtime", {}),
        "variables": facts.get("environment") or {},
    }


PROGRAMS = ("python", "python3", "torchrun", "deepspeed", "accelerate")
"""Programs that a misspelt first word of a command may mean."""


class CommandNotFound(MemlabError):
    """The first word of the command is no program."""

    exit_code = 127  # of a shell for a command that does not exist


def check_program(words: Sequence[str]) -> None:
    """Raise :class:`CommandNotFound` if the first word of a command is no program."""
    if shutil.which(words[0]) is None:
        hint = "After -- comes the command as you type it."
        if words[0].endswith(".py"):
            hint = f"Write python3 {words[0]}."
        elif meant := get_close_matches(words[0], PROGRAMS):
            hint = f"Did you mean '{meant[0]}'?"
        raise CommandNotFound(f"{words[0]}: no such program on the PATH. {hint}")


def measure(
    words: Sequence[str],
    folder: RunFolder,
    options: MeterOptions = MeterOptions(),  # noqa: B008
    timeout_s: float | None = None,
    force: bool = False,
) -> Record:
    """Run the command and write its run folder.

    ``timeout_s``: end the command after so many seconds. ``force``: replace an earlier run in the folder. Raises
    :class:`MemlabError` before anything runs.
    """
    check_program(words)
    job = job_in(folder, words, force)
    with exclusively(job):
        job.start(list(words))
        streams = ToTerminal(folder.launcher_log)
        limit = math.inf if timeout_s is None else timeout_s
        finished = supervise(words, os.environ, streams, options, folder, limit, LaunchControl())
        return write_record(finished, job, words, options.steps)


def job_in(
    folder: RunFolder,
    words: Sequence[str],
    force: bool,
    instead: str = "Choose another --output, or replace it with --force.",
) -> Job:
    """Make the job of a command. Raises :class:`FolderError` if the folder holds an earlier run that ``force`` does not
    replace, or files that are not memlab's. ``instead``: what to do in the first case."""
    job = Job(plan_of_command(words), folder)
    job.refuse_other_run(force)
    if folder.holds_result() and not force:
        raise FolderError(f"{folder} holds an earlier run: nothing was started. {instead}")
    return job


def write_record(
    finished: Finished, job: Job, words: Sequence[str], steps: int | None = None, machine: Machine | None = None
) -> Record:
    """Write the record of a command that is over, which ends its run folder. ``words``: the command; ``steps``: the
    number of steps that it was to end after; ``machine``: by default this one."""
    machine = machine or detect()
    found = found_values(finished.ranks, finished.rows, job.config.training.command)
    is_composed = not job.plan.unknown_config
    plan, disagreements = beside(job.plan, found) if is_composed else (plan_found(found), [])
    known = {"fingerprint": fingerprint(job.plan, machine)} if is_composed else {}
    facts = {"words": list(words), "exit_code": finished.exit_code, "steps": steps, "disagreements": disagreements}
    ended = {"source": "measured", "status": finished.status, "reason": finished.reason}
    record = command_record(plan, finished.ranks, finished.rows, finished.seconds, facts, machine, **ended, **known)
    keep_what_was_found(finished.ranks, job.folder)
    job.folder.finish(record)
    keep_operators(job.folder, PROFILED_RANK)
    return record


def plan_of_command(words: Sequence[str]) -> Plan:
    """Make the plan of a command that memlab did not compose: little more than the command is known before it runs."""
    return plan_found(found_values([], {}, shlex.join(words)))


def keep_what_was_found(ranks: Sequence[dict], folder: RunFolder) -> None:
    """Write the DeepSpeed JSON and the training arguments that the script used, where a run of memlab has its own.

    The files of the ranks are written again, without secrets: a rank blanks only what has a secret's name.
    """
    facts = ranks[0]["attached"] if ranks else {}
    folder.write_inputs(first_engine(facts).get("config") or {}, arguments_of(facts))
    folder.write_ranks(ranks)


OUTPUT = "output"
"""Folder inside the run folder that ``{run_dir}`` stands for: the script's files stay apart from memlab's."""

OF_MEMLAB = ("measure", "predict", "sweep", "mode", "name", "objective", "force", "training", "own")
"""Groups and keys that memlab itself carries out, and the user's own: the composed value is what happened."""


TARGETS = "adapter.target_modules"


def point_words(job: Job) -> list[str]:
    """Return the words of the command of one point, and make the data set that it names."""
    folder = job.folder.path
    data = training_data(job.config)
    return filled(job.config, folder / RunFolder.DEEPSPEED, folder / OUTPUT, free_port(), data)


def launch_command(job: Job, machine: Machine, gpus: Sequence[Gpu], control: LaunchControl) -> Record:
    """Run the command of a point and write its record."""
    config, folder = job.config, job.folder
    words = point_words(job)
    job.start(words)
    environment = command_environment(config, os.environ)
    if config.hardware.device == "cuda":
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(gpu.id for gpu in gpus[: job.plan.ranks_per_node])
    steps, profiles = config.measure.warmup + config.measure.steps, config.measure.profile
    last = steps + (PROFILER_WARMUP + PROFILED_STEPS if profiles else 0)
    options = MeterOptions(steps=last, profile=steps if profiles else None, warmup=config.measure.warmup)
    log = ToLog(folder.launcher_log)
    finished = supervise(words, environment, log, options, folder, config.measure.timeout_s, control)
    record = write_record(finished, job, words, steps, machine)
    if finished.survivors:
        control.stop.set()  # they may still hold memory, which would change every later measurement
    return record


def beside(plan: Plan, found: Mapping[str, Any]) -> tuple[Plan, list[dict[str, Any]]]:
    """Put what was composed beside the values that were found. Returns the plan of the record, and the disagreements.

    What the script used counts. A composed value counts for what memlab itself carries out, for the machine, and for a
    key that has a place in the command and was not found out: the command was given it. Every other key is unknown.
    """
    config = plan.config
    composed, places, was_given = flat(to_dict(config)), template(config).places, given(config)
    used = dict(found)
    if TARGETS in was_given and composed[TARGETS] == ["all-linear"]:
        used.pop(TARGETS, None)  # peft has put the names of the layers in its place
    disagreements = [
        {"key": key, "composed": composed[key], "found": value}
        for key, value in used.items()
        if key in was_given and composed[key] not in (value, None)
    ]
    own = {key: value for key, value in composed.items() if key.partition(".")[0] in OF_MEMLAB}
    libraries = {"deepspeed": DEEPSPEED_JSON, "training_args": TRAINING_ARGS}
    reached = ("hardware.", *(f"{name}." for name, place in libraries.items() if place in places))
    passed = {key: value for key, value in composed.items() if key in places or key.startswith(reached)}
    merged = plan_found({**passed, **used, **own, "measure.protocol": "cold"})
    doubtful = {key.partition(".")[0] for key in (*merged.unknown_config, *(each["key"] for each in disagreements))}
    choices = merged.choices | {group: option for group, option in plan.choices.items() if group not in doubtful}
    return replace(plan, config=merged.config, choices=choices, unknown_config=merged.unknown_config), disagreements
