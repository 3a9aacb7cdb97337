"""Prediction of a command of the user's own: its script runs on simulated GPUs, with ``memlab measure``'s meters."""

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from memlab.core.config import Hardware
from memlab.core.errors import ConfigError, ShadowError
from memlab.core.record import Record
from memlab.core.record_schema import SandboxEffects
from memlab.core.sizes import GIB
from memlab.launch.orphans import exclusively
from memlab.launch.outcome import NO_STEP, by_failure, reason_of_rank
from memlab.launch.user_command.measure import check_program, keep_what_was_found, plan_of_command
from memlab.meters import install
from memlab.meters.garbage_collector import paused_garbage_collector
from memlab.planner.command_changes import predicted_changes
from memlab.planner.command_record import TracedCommand, record_of_traces, record_without_traces
from memlab.prediction.memory.rank_results import rank_results
from memlab.prediction.memory.shared_gpus import with_memory_of_others
from memlab.prediction.memory.whole_epoch import ORDER, other_orders, with_whole_epoch
from memlab.prediction.memory.workspaces import WORKSPACES, figures_with_workspaces, with_workspaces
from memlab.prediction.run_command import ITS_OUTPUT, LOG, RanksDiffer, Simulated, simulate
from memlab.prediction.time.calibrate import calibrations_of
from memlab.runs.folder import RunFolder
from memlab.runs.gpus_of_process import on_each_gpu
from memlab.runs.job import Job
from memlab.runs.step_rows import read_rows
from memlab.simulator import graph_cache
from memlab.simulator.outside.appearances import COMMUNICATOR
from memlab.simulator.rank.launchers import ALL_RANKS
from memlab.simulator.rank.unpredictable import NAME, SET_DEVICE
from memlab.simulator.simulation import Node, noted_choices
from memlab.system.deadman import TOKEN_VARIABLE, guarded, kill_marked
from memlab.system.process_copy import computed_in_a_copy
from memlab.system.sandbox import NAMESPACES, Sandbox, check_wall
from memlab.system.sandbox.kept_data import KeptData, graphs_in_use, keep_graphs
from memlab.system.sandbox.limits import LimitError

HUB = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}

TRACKERS = {
    "WANDB_MODE": "offline",
    "NEPTUNE_MODE": "offline",
    "SWANLAB_MODE": "offline",
    "CLEARML_OFFLINE_MODE": "1",
    "COMET_START_ONLINE": "0",
    "MLFLOW_TRACKING_URI": "",  # the default: files of the working folder
}
"""Trackers write files instead, which go to the scratch folder."""

SWITCHED_OFF = ("disabled", "debug")
"""Values of these variables with which a user switches a tracker off. They stay."""


def offline_variables(sandbox: Sandbox, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a command in a sandbox. With an open network, the Hub may be read.

    ``environ``: the variables that the command would get.
    """
    # wandb writes its files in a static program, whose writes no library redirects.
    wandb = {} if sandbox.protection == NAMESPACES else {"WANDB_MODE": "disabled"}
    trackers = {name: value for name, value in {**TRACKERS, **wandb}.items() if environ.get(name) not in SWITCHED_OFF}
    return {**({} if sandbox.network else HUB), **trackers}


PROCESSES = 2
"""Processes of a prediction: rank 0, and one for all other ranks."""

POLL_S = 0.5

RANGED = ("peak_allocated_bytes", "peak_reserved_bytes", "device_used_bytes")


def _range(choice: str, record: Record, trace: Callable[[], TracedCommand]) -> dict[str, Any]:
    """Predict a command once more, with a choice that steered it made the other way round. ``trace`` runs it so.

    Returns ``choice`` (of trace_format.py), and for each key of ``RANGED`` [lowest, highest] of both predictions, each
    on its highest rank; ``failure`` where the other prediction failed.
    """
    try:
        both = record, record_of_traces(trace())[0]
    except ShadowError as error:
        return {"choice": choice, "failure": str(error)}
    highest = {key: [max(rank[key] or 0 for rank in each.ranks) for each in both] for key in RANGED}
    return {"choice": choice, **{key: sorted(found) for key, found in highest.items()}}


def _range_of_orders(traced: TracedCommand, need: Mapping[str, int]) -> list[dict[str, Any]]:
    """Return the lowest and highest figures over several orders of the batches; empty if the order is fixed. ``need``:
    the figures in the order of the run."""
    config, orders = traced.config, other_orders(traced.as_run)
    found: dict[str, list[int]] = {key: [nbytes] for key, nbytes in need.items()}
    for traces in orders:
        (results,) = rank_results([config], [traces], calibrations_of(config).host)
        limit = max(result.device_total_bytes or 0 for result in results) if any(each.oom for each in results) else 0
        for key in found:
            found[key].append(limit or max(getattr(result, key) for result in results))
    return [{"choice": ORDER, **{key: [min(each), max(each)] for key, each in found.items()}}] if orders else []


@dataclass(frozen=True)
class CommandRun:
    """A command to run on simulated GPUs of ``hardware``.

    ``environ``: the variables that the command would get, with the token of a launch. ``steps``: end after this many
    optimizer steps. ``timeout_s``: seconds after which a run of the script is ended. ``other_end``: the choice that is
    made the other way round (simulator/rank/choices.py).
    """

    words: Sequence[str]
    hardware: Hardware
    environ: Mapping[str, str]
    steps: int | None = None
    timeout_s: float | None = None
    other_end: str | None = None


class CommandFailed(ShadowError):
    """The script failed, trained nothing, or did not end. ``status``: of its record. ``effects``: those that it would
    have had until then."""

    def __init__(self, reason: str, effects: SandboxEffects, status: str = "failed"):
        super().__init__(reason)
        self.effects, self.status = effects, status


def predict_command(
    words: Sequence[str],
    hardware: Hardware,
    folder: RunFolder,
    steps: int | None,
    wants_changes: Callable[[Record], bool] = lambda record: False,
    on_change: Callable[[str], None] = lambda told: None,
    timeout_s: float | None = None,
) -> Record:
    """Predict a command and write its run folder. The arguments are those of :class:`CommandRun`, the errors those of
    :func:`predicted_record`.

    ``wants_changes``: whether single changes of the command are predicted, too. ``on_change`` gets each one first.
    """
    folder.refuse_foreign_files()
    _check(words, hardware)  # an earlier run in the folder stays if nothing can run, and no new folder is made
    check_wall(os.environ)
    job = Job(plan_of_command(words), folder)
    with exclusively(job):
        job.start(list(words))
        began = time.time()
        try:
            has_free_core = len(os.sched_getaffinity(0)) >= 2 * min(hardware.gpus, PROCESSES)
            with guarded(os.environ) as environ:
                run = CommandRun(words, hardware, environ, steps, timeout_s)
                record = predicted_record(run, folder, wants_changes, on_change, has_free_core)
        except KeyboardInterrupt:
            seconds = time.time() - began
            reason = f"stopped by a signal after {seconds:.0f} s"
            folder.finish(record_without_traces("interrupted", reason, words, steps, seconds))
            raise
        folder.finish(record)
        return record


def _check(words: Sequence[str], hardware: Hardware) -> int:
    """Return the bytes of a GPU. Raises :class:`MemlabError` if the command has no program, or the hardware no
    memory."""
    if hardware.memory_gib is None:
        raise ConfigError("hardware.memory_gib is not known: choose a GPU, for example hardware=h200_x1.")
    check_program(words)
    return int(hardware.memory_gib * GIB)


@paused_garbage_collector()  # a trace has millions of events
def predicted_record(
    run: CommandRun,
    folder: RunFolder,
    wants_changes: Callable[[Record], bool] = lambda record: False,
    on_change: Callable[[str], None] = lambda told: None,
    has_free_core: bool = False,
) -> Record:
    """Run the ranks that differ on simulated GPUs, and return the record.

    ``folder`` receives the files of the ranks. ``has_free_core``: whether a second script may run, or a second trace be
    replayed, at the same time. The others are those of :func:`predict_command`. Raises :class:`MemlabError` before
    anything runs.
    """
    began = time.time()
    try:
        with _thread_beside(run.environ) as beside:
            traced, others = _both_ends(run, folder, beside, has_free_core)
            config = traced.config
            replay = partial(figures_with_workspaces, config, traced.traces, calibrations_of(config).host)
            taking = computed_in_a_copy(replay) if has_free_core else replay
            record, rows = record_of_traces(traced)
            keep_what_was_found(record.ranks, folder)
            folder.write_step_rows(rows)
            ranges = []
            if record.ranks and record.status == "ok":
                need = {key: max(rank[key] for rank in record.ranks) for key in RANGED}
                if figures := taking():
                    ranges.append({"choice": WORKSPACES, **with_workspaces(config, traced.traces, need, figures)})
                ranges += _range_of_orders(traced, need)
            ranges = [*(_range(choice, record, other) for choice, other in others.items()), *ranges]
    except CommandFailed as error:
        seconds = time.time() - began
        ended = record_without_traces(error.status, str(error), run.words, run.steps, seconds)
        return ended.with_command(effects=error.effects)
    record = record.with_command(ranges=ranges)
    if not wants_changes(record):
        return record

    def trace(words: Sequence[str], place: RunFolder) -> TracedCommand:
        return traced_command(replace(run, words=words), place)

    return record.with_command(changes=predicted_changes(traced, record, trace, on_change))


def _both_ends(
    run: CommandRun, folder: RunFolder, beside: ThreadPoolExecutor, has_free_core: bool
) -> tuple[TracedCommand, dict[str, Callable[[], TracedCommand]]]:
    """Run a script, and once more for each choice that it made, with that choice made the other way round.

    Returns the first run, and for each choice a function that waits for the other run and returns it. ``beside`` runs
    the others one after another. ``has_free_core``: the first of them begins as soon as the script has made a choice;
    else after the script.
    """
    others: dict[str, Callable[[], TracedCommand]] = {}
    is_over = threading.Event()

    def trace(place: RunFolder, other_end: str | None = None) -> TracedCommand:
        token = f"{run.environ[TOKEN_VARIABLE]}-{other_end or 'script'}"  # each ends its own processes alone
        own = replace(run, environ={**run.environ, TOKEN_VARIABLE: token}, other_end=other_end)
        return traced_command(own, place)

    def begin(choices: Iterable[str]) -> None:
        for choice in sorted(set(choices) - others.keys()):
            others[choice] = beside.submit(trace, RunFolder(folder.own_folder(f"other_end_{choice}")), choice).result

    def watch() -> None:
        while not is_over.wait(POLL_S):
            begin(noted_choices(folder.path / install.FOLDER))

    with ThreadPoolExecutor(1) as watcher:
        try:
            if has_free_core:
                watcher.submit(watch)
            traced = trace(folder)
        finally:
            is_over.set()
    made = sorted({choice for each in traced.traces.values() for choice in each.choices})
    begin(made)
    return traced, {choice: others[choice] for choice in made}


@contextmanager
def _thread_beside(environ: Mapping[str, str]) -> Iterator[ThreadPoolExecutor]:
    """Yield a thread that runs scripts one after another. An exception that leaves the block ends them. ``environ``:
    their variables, with the token of a launch."""
    with ThreadPoolExecutor(1) as beside:
        try:
            yield beside
        except BaseException:
            ending = threading.Thread(target=partial(beside.shutdown, cancel_futures=True))
            ending.start()
            while ending.is_alive():
                kill_marked(environ[TOKEN_VARIABLE])  # again and again: a script may just be about to begin
                ending.join(POLL_S)
            raise


def traced_command(run: CommandRun, folder: RunFolder) -> TracedCommand:
    """Run the ranks that differ on simulated GPUs, in a sandbox. ``folder`` receives the files of the ranks.

    The first and the last rank are taken to be all that differ. If they send to single others, all ranks are run anew.

    Raises :class:`CommandFailed` if the script fails, trains nothing, or has not ended after ``timeout_s`` seconds.
    """
    began = time.time()
    words, hardware, environ, timeout_s = run.words, run.hardware, run.environ, run.timeout_s
    node = Node(hardware.gpu, hardware.gpus, _check(words, hardware))
    handed_over = folder.own_folder(install.FOLDER)
    data = KeptData(words, environ)
    graphs = graph_cache.folder()
    with (
        graphs_in_use(graphs),
        data.layers() as layers,
        Sandbox(handed_over, environ, below=(data.folder, layers)) as sandbox,
    ):
        variables = {**environ, **offline_variables(sandbox, environ)}
        try:
            simulated = simulate(words, node, folder.path, run.steps, variables, run.other_end, timeout_s, sandbox.run)
        except LimitError as error:
            raise CommandFailed(str(error), sandbox.effects()) from None
        except RanksDiffer:
            return traced_command(replace(run, environ={**environ, ALL_RANKS: "1"}), folder)
        effects = sandbox.effects()
        meters = {rank["rank"]: rank for rank in folder.read_attached_ranks()}
        if simulated.waited_at is not None and timeout_s is not None:
            raise CommandFailed(_not_ended(simulated.waited_at, meters, timeout_s, folder), effects, "timeout")
        if reason := _failure(simulated, meters):
            raise CommandFailed(f"{reason.rstrip('.')}{ITS_OUTPUT}{folder.path / LOG}", effects)
        sources = [each["path"] for rank in meters.values() for each in rank["attached"].get("datasets") or ()]
        data.keep(sandbox.written_in(data.folder), sources)
        keep_graphs(sandbox.written_in(graphs), graphs)
    if (first := meters[min(meters)])["attached"]["world_size"] == 1:  # a process, whose traces are of its GPUs
        gpus = [f"cuda:{trace.gpu}" for trace in simulated.traces.values() if len(simulated.traces) > 1]
        if gpus and first["device"] not in gpus:  # the current one, which has no large tensors
            first = {**first, "device": gpus[0]}
        others = [{"device": gpu} for gpu in gpus if gpu != first["device"]]
        meters = {entry["rank"]: entry for entry in on_each_gpu(first, others)}
    rows = {rank: read_rows(folder.step_rows(rank)) for rank in meters}
    traces = {rank: simulated.traces[rank] for rank in meters}
    traced = TracedCommand(words, run.steps, hardware, traces, meters, rows, time.time() - began, effects)
    return _completed(traced, folder)


def _completed(traced: TracedCommand, folder: RunFolder) -> TracedCommand:
    """Note in the traces what ranks take of each other's GPU, and replay the steps that were left out of them, also in
    their files.

    Raises :class:`CommandFailed` if ranks on one GPU have a communicator of NCCL, which ends them with this error
    (initTransportsRank in its init.cc).
    """
    gpus = traced.gpus_of_ranks
    as_run = with_memory_of_others(traced.traces, gpus, traced.ranks_of_node)
    appearances = (each for trace in as_run.values() if trace.beside for each in trace.appearances)
    if any(each.what == COMMUNICATOR and each.ranks > 1 for each in appearances):
        where = f"{len(gpus)} ranks are on {', '.join(f'cuda:{gpu}' for gpu in sorted(set(gpus)))}"
        raise CommandFailed(f'{where}, and NCCL ends with "Duplicate GPU detected": {SET_DEVICE}', traced.effects)
    whole = {rank: with_whole_epoch(trace) for rank, trace in as_run.items()}
    for rank, trace in whole.items():
        if trace is not traced.traces[rank]:
            trace.save(folder.rank_file(rank).with_suffix(".trace.json"))
    return replace(traced, traces=whole, as_run=as_run)


def _failure(simulated: Simulated, meters: Mapping[int, Mapping[str, Any]]) -> str | None:
    """Return why the command failed on simulated GPUs; ``None`` if all its ranks ended well."""
    if broken := next((rank for rank in by_failure(meters.values()) if rank["status"] != "ok"), None):
        names_the_place = (broken["reason"] or "").startswith(NAME)
        told = reason_of_rank({**broken, "attached": {}} if names_the_place else broken)
        return f"on simulated GPUs, {told.replace(NAME, '', 1)}"
    if simulated.returncode:
        return f"the command ended with exit code {simulated.returncode}: {simulated.last_words}"
    return None if meters and meters.keys() <= simulated.traces.keys() else NO_STEP


def _not_ended(
    waited_at: Sequence[str], meters: Mapping[int, Mapping[str, Any]], timeout_s: float, folder: RunFolder
) -> str:
    """Return the reason of a command that was ended because its time was over."""
    steps = max((len(read_rows(folder.step_rows(rank))) for rank in meters), default=0)
    done = f"after {steps:,} optimizer step{'s' * (steps != 1)}" if steps else "before a first optimizer step"
    where = f" at {', '.join(dict.fromkeys(waited_at))}" if waited_at else ""
    return (
        f"the script had not ended after {timeout_s:,.0f} s: it was{where} {done}. If it waits or serves there, "
        f"predict a command that trains; if it only needs longer, raise --timeout{ITS_OUTPUT}{folder.path / LOG}"
    )
