"""Prediction of a command of the user's own: its script runs on simulated GPUs, with ``memlab measure``'s meters."""

import os
import shlex
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from memlab.core.config import Hardware
from memlab.core.errors import ConfigError
from memlab.core.record import PREDICTED, Record
from memlab.core.sizes import GIB
from memlab.launch.process import Ended
from memlab.launch.user_command.found_config import found_config
from memlab.launch.user_command.measure import keep_what_was_found
from memlab.launch.user_command.records import command_record
from memlab.launch.user_command.supervise import Finished
from memlab.predict.constants import outside_the_allocator
from memlab.predict.memory.host import host_peak
from memlab.predict.trace.parse_command import Command, Node, parse, ranks_of_a_node, trace_rank
from memlab.predict.trace.shadow_process import ShadowError
from memlab.predict.trace.trace_format import Trace
from memlab.runs.folder import RunFolder
from memlab.runs.step_rows import read_rows
from memlab.system.deadman import guarded
from memlab.system.machine import Machine

NOT_PREDICTED: dict[str, Any] = {"step_seconds": [], "warmup_seconds": [], "timing": {}}
"""Figures of a rank that simulated GPUs do not have: their clocks mean nothing."""


def predict_command(words: Sequence[str], hardware: Hardware, folder: RunFolder, steps: int | None) -> Record:
    """Predict a command and write its run folder. Arguments and errors are those of :func:`predicted_record`."""
    with guarded(os.environ) as environ:
        record = predicted_record(words, hardware, folder, steps, environ)
    folder.finish(record)
    return record


def predicted_record(
    words: Sequence[str], hardware: Hardware, folder: RunFolder, steps: int | None, environ: Mapping[str, str]
) -> Record:
    """Run the ranks that differ on simulated GPUs of ``hardware``, and return the record.

    ``folder`` receives the files of the ranks. ``steps``: end after this many optimizer steps. ``environ``: the
    variables that the command would get. Raises :class:`MemlabError` before anything runs.
    """
    if hardware.memory_gib is None:
        raise ConfigError("hardware.memory_gib is not known: choose a GPU, for example hardware=h200_x1.")
    command, began = parse(words), time.time()
    node = Node(hardware.gpu, hardware.gpus, int(hardware.memory_gib * GIB))
    folder.path.mkdir(parents=True, exist_ok=True)
    world_size = ranks_of_a_node(command, node.gpus) * command.nodes
    differ = sorted({0, world_size - 1})  # rank 0 logs and saves; all others are alike
    pool = ThreadPoolExecutor()
    try:
        outcomes = list(pool.map(lambda rank: _traced(command, rank, node, folder, steps, environ), differ))
    finally:
        pool.shutdown(wait=False)  # after an interrupt the caller ends the processes that the threads wait for
    traces = {outcome.rank: outcome for outcome in outcomes if isinstance(outcome, Trace)}
    ranks = [_predicted(rank, traces) for rank in folder.read_attached_ranks()]
    rows = {rank["rank"]: _without_host(read_rows(folder.step_rows(rank["rank"]))) for rank in ranks}
    status, reason = _outcome(ranks, outcomes, node, world_size)
    finished = Finished(Ended("exited", 0, time.time() - began), status, reason, ranks, rows)
    found = found_config(ranks, rows, shlex.join(words))
    assumed = {line: times for trace in traces.values() for line, times in trace.assumed.items()}
    record = command_record(finished, found, words, steps, Machine())
    epochs = [epoch for trace in traces.values() for epoch in trace.epochs]
    command_facts = {**(record.command or {}), "assumed": assumed, "epochs": epochs}
    record = replace(record, source="predicted", command=command_facts)
    keep_what_was_found(ranks, folder)
    return record


def _traced(
    command: Command, rank: int, node: Node, folder: RunFolder, steps: int | None, environ: Mapping[str, str]
) -> Trace | ShadowError:
    try:
        return trace_rank(command, rank, node, folder.path, steps, environ)
    except ShadowError as error:
        return error


def _predicted(rank: Mapping[str, Any], traces: Mapping[int, Trace]) -> dict[str, Any]:
    """Return the figures of a rank with its predicted host memory. That of the process itself is another machine's."""
    phases = {name: _without_host([phase])[0] for name, phase in rank["attached"].get("phases", {}).items()}
    trace = traces.get(rank["rank"])
    return {
        **rank,
        **NOT_PREDICTED,
        "memory_source": PREDICTED,
        "host_peak_bytes": None if trace is None else host_peak(trace).process,
        "attached": {**rank["attached"], "phases": phases},
    }


def _without_host(figures: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**each, "host_peak_bytes": None} for each in figures]


def _outcome(
    ranks: Sequence[Mapping[str, Any]], outcomes: Sequence[Trace | ShadowError], node: Node, world_size: int
) -> tuple[str, str | None]:
    """Return status and reason: whether all ranks ended, and whether their memory is enough."""
    for outcome in outcomes:
        if isinstance(outcome, ShadowError):
            return "failed", f"the script failed on simulated GPUs: {outcome}"
    if not ranks:
        return "failed", "no optimizer step seen"
    capacity = node.memory_bytes - outside_the_allocator(node.gpu, world_size)
    highest = max(ranks, key=lambda rank: rank["peak_reserved_bytes"] or 0)
    if highest["peak_allocated_bytes"] > capacity:
        needed, there = highest["peak_allocated_bytes"] / GIB, capacity / GIB
        return "gpu_oom", f"rank {highest['rank']} allocates {needed:.2f} GiB, and the GPU has {there:.2f} GiB for it"
    return "ok", None
