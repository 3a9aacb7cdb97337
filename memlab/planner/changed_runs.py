"""A run and its single changes as predictions: of memlab's own training, and of a command of the user's own."""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from memlab.core.config import Config
from memlab.core.errors import MemlabError
from memlab.core.plan import Plan
from memlab.core.record import PREDICTED, Record
from memlab.planner.changes import Change
from memlab.planner.command_changes import changed_command, or_reason, possible_changes
from memlab.planner.command_record import TracedCommand
from memlab.planner.search import Progress
from memlab.planner.user_command import CommandRun, traced_command
from memlab.prediction.run_command import traces_in
from memlab.prediction.traces.choose_traces import trace_missing, traces
from memlab.prediction.traces.store import code_digest
from memlab.runs.command_inputs import are_unchanged
from memlab.runs.folder import RunFolder
from memlab.runs.step_rows import read_rows
from memlab.simulator.trace.trace_format import Traces


@dataclass(frozen=True)
class TracedPlan:
    """A plan on simulated GPUs. ``traces``: of the ranks that differ."""

    config: Config
    traces: Traces


PredictedRun = TracedPlan | TracedCommand


class ChangedPlans:
    """A run of memlab's own training with all its possible single changes."""

    def __init__(self, base: Plan, changes: Sequence[Change], on_progress: Progress):
        self._base, self.changes, self._on_progress = base, changes, on_progress

    @cached_property
    def base(self) -> PredictedRun:
        """The prediction of the run as it is. Raises :class:`MemlabError` if there can be none."""
        return _traced_plan(self._base)

    def predict(self, chosen: Sequence[Change]) -> Iterator[PredictedRun | str]:
        """Yield the prediction with each change alone, or the reason why there is none.

        All changes are traced in one shadow process. The traces stay in the user's cache.
        """
        plans = [change.plan for change in chosen if change.plan is not None]
        trace_missing(plans, lambda done, of: self._on_progress("tracing", done, of))
        for number, plan in enumerate(plans):
            self._on_progress("replaying", number, len(plans))
            yield or_reason(_traced_plan, plan)


class ChangedCommands:
    """A command of the user's own, from its run folder, with all its possible single changes. Each change runs its
    script again, on simulated GPUs.

    ``environ``: the variables that the command would get, with the token of a launch. Raises :class:`MemlabError` if
    no rank noted what the script uses, and in another folder than the one where the command ran.
    """

    def __init__(self, folder: RunFolder, record: Record, environ: Mapping[str, str], on_progress: Progress):
        self._folder, self._record, self._environ, self._on_progress = folder, record, environ, on_progress
        facts = next((rank["attached"] for rank in record.ranks if rank["attached"]), None)
        if facts is None:
            raise MemlabError(f"{folder}: the record has no facts about the script of this command. Predict it again.")
        if (ran_in := (facts.get("script") or {}).get("cwd")) and Path(ran_in) != Path.cwd():
            raise MemlabError(f"The command ran in {ran_in}: call memlab explain --remedies in that folder.")
        self.changes = possible_changes(record.command["words"], record, facts, record.config.hardware.gpus)

    @cached_property
    def base(self) -> TracedCommand:
        """The prediction in the run folder if this code made it and no file of the script changed since; else the
        command runs again."""
        is_current = self._record.environment.get("predictor") == code_digest() and are_unchanged(self._record)
        if self._record.source == PREDICTED and is_current and (found := traces_in(self._folder.path)):
            return self._from_folder(found)
        self._on_progress("predicting the command as it is", 0, 1)
        with tempfile.TemporaryDirectory(prefix="memlab-base-") as scratch:
            return self._trace(self._record.command["words"], RunFolder(scratch))

    def predict(self, chosen: Sequence[Change]) -> Iterator[PredictedRun | str]:
        for number, change in enumerate(chosen):
            self._on_progress(f"predicting the command with {change.told}", number, len(chosen))
            yield or_reason(changed_command, change, self.base, self._trace)

    def _trace(self, words: Sequence[str], folder: RunFolder) -> TracedCommand:
        """Run words of the command on the GPUs of the record, with the allocator's settings of the record."""
        config, steps = self._record.config, self._record.command.get("steps")
        run = CommandRun(words, config.hardware, self._environ, steps)
        return replace(traced_command(run, folder), allocator_conf=config.allocator.conf)

    def _from_folder(self, traces: Traces) -> TracedCommand:
        record = self._record
        return TracedCommand(
            record.command["words"],
            record.command.get("steps"),
            record.config.hardware,
            traces,
            {rank["rank"]: rank for rank in record.ranks if rank["rank"] in traces},
            {rank: read_rows(self._folder.step_rows(rank)) for rank in traces},
            record.timing["total_s"],
            record.command["effects"],
            record.config.allocator.conf,
        )


ChangedRuns = ChangedPlans | ChangedCommands


def _traced_plan(plan: Plan) -> TracedPlan:
    return TracedPlan(plan.config, traces(plan))
