"""One point of a sweep of the user's own command, predicted; a point that was predicted before is copied."""

import hashlib
import os
import shutil
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from time import monotonic

from memlab.core.command_template import command_environment, filled
from memlab.core.errors import RecordError
from memlab.core.plan import Plan
from memlab.core.record import FINAL, Record
from memlab.files.disk import cache_folder
from memlab.launch.launch_control import LaunchControl
from memlab.launch.user_command.found_config import found_values
from memlab.launch.user_command.measure import beside, point_words
from memlab.planner.user_command import CommandRun, predicted_record
from memlab.prediction.prediction import NOWHERE
from memlab.prediction.traces.store import code_digest
from memlab.runs.command_inputs import are_unchanged
from memlab.runs.folder import RunFolder
from memlab.runs.job import Job
from memlab.runs.step_rows import read_rows
from memlab.simulator import own_stand_ins
from memlab.system.deadman import TOKEN_VARIABLE, guarded, kill_marked
from memlab.system.environment import command_fingerprint, fingerprint

KEY = "prediction_key"
"""Key of ``Record.environment``: what decided the prediction."""

POLL_S = 0.1


def predict_point(job: Job, control: LaunchControl, force: bool = False) -> Record:
    """Predict the command of a point and write its record.

    The record is a copy where a point that is the same for the command was predicted before, unless ``force``.
    """
    folder, kept = job.folder, kept_folder(job.plan)
    words = point_words(job)
    record = None if force else _read_kept(kept)
    if record is None:
        job.start(words)
        record = _run(job, words, control)
    elif kept.path != folder.path:
        job.start(words)
        folder.copy_ranks(kept)
    record = _as_point(record, job, words)
    folder.finish(record)
    if record.status in FINAL and kept.path != folder.path:
        with kept.lock() as mine:
            if mine:  # otherwise another memlab or sweep is writing the same prediction
                kept.copy_ranks(folder)
                kept.finish(record)
    return record


def kept_folder(plan: Plan) -> RunFolder:
    """Return the folder, in the user's cache, of the prediction of all points that are the same for the command."""
    return RunFolder(cache_folder("commands") / prediction_key(plan))


def prediction_key(plan: Plan) -> str:
    """Hash everything that decides the prediction of a point, except the files that only its script knows."""
    stand_ins = [hashlib.sha256(path.read_bytes()).hexdigest() for path in own_stand_ins.files()]
    program = shutil.which(filled(plan.config, Path(), Path(), 0)[0]) or ""
    return command_fingerprint(plan, [code_digest(), program, *_installed_beside(program), *stand_ins])


def _installed_beside(program: str) -> list[str]:
    """Return when packages were last installed or removed in the Python environment that a program belongs to."""
    packages = Path(program).parent.parent.glob("lib/python3*/site-packages") if os.path.isabs(program) else ()
    return [str(folder.stat().st_mtime_ns) for folder in sorted(packages)]


def _read_kept(kept: RunFolder) -> Record | None:
    try:
        record = kept.read_record()
    except RecordError:
        return None
    return record if record.status in FINAL and not record.is_implied and are_unchanged(record) else None


def _run(job: Job, words: list[str], control: LaunchControl) -> Record:
    """Run the shadow processes of a point to their end, or until the sweep or the time limit ends them."""
    measure, began = job.config.measure, monotonic()
    with guarded(command_environment(job.config, os.environ)) as environ, ThreadPoolExecutor(1) as thread:
        run = CommandRun(words, job.config.hardware, environ, measure.warmup + measure.steps)
        running = thread.submit(predicted_record, run, job.folder)
        while not wait([running], POLL_S).done:
            seconds = monotonic() - began
            why = "by a signal" if control.stop.is_set() else control.reason_to_end()
            if why or seconds > measure.timeout_s:
                kill_marked(environ[TOKEN_VARIABLE])
                status, told = ("interrupted", f"stopped {why}") if why else ("timeout", "the script had not ended")
                return job.new_record(NOWHERE, status, f"{told} after {seconds:.0f} s")
        return running.result()


def _as_point(record: Record, job: Job, words: list[str]) -> Record:
    """Return the record with what was composed beside what the script used."""
    rows = {rank["rank"]: read_rows(job.folder.step_rows(rank["rank"])) for rank in record.ranks}
    plan, disagreements = beside(job.plan, found_values(record.ranks, rows, job.config.training.command))
    pointed = replace(
        record,
        run_id=plan.run_id,
        fingerprint=fingerprint(job.plan, NOWHERE),
        config=plan.config,
        choices=plan.choices,
        unknown_config=plan.unknown_config,
        environment={**record.environment, KEY: prediction_key(job.plan)},
    )
    return pointed.with_command(words=words, disagreements=disagreements)
