"""Predictions of measured runs: the same configurations, with the points of each launch in the order they ran."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from memlab.core.config import Config
from memlab.core.grouping import grouped
from memlab.core.plan import Plan, engine_key, make_plan, shape_of
from memlab.core.record import Record
from memlab.prediction.not_predicted import unpredictable
from memlab.prediction.prediction import predict_launch
from memlab.prediction.traces.choose_traces import trace_missing

JUDGED = ("ok", "gpu_oom")
"""Statuses of records that show whether GPU memory was enough."""


@dataclass
class MeasuredLaunch:
    """One launch of a sweep. ``shapes``: (micro batch, tokens) of all its points in order; ``records``: index of the
    point -> its record, where there is one."""

    shapes: list[tuple[int, int]]
    records: dict[int, Record] = field(default_factory=dict)

    def plans(self) -> list[Plan]:
        """Return a plan for every point, made from one record, because the points of a launch differ in shape alone."""
        record = next(iter(self.records.values()))
        return [make_plan(_with_shape(record.config, shape), record.choices) for shape in self.shapes]


def predictions(sweep: Sequence[Record]) -> Iterator[tuple[Record, Record]]:
    """Yield (measured, predicted) for each record of a sweep that shows whether GPU memory was enough."""
    found = [(launch, launch.plans()) for launch in launches(sweep)]
    trace_missing(plan for _, plans in found if not unpredictable(plans[0].config) for plan in plans)  # in one process
    for launch, plans in found:
        predicted: list[Record] = []
        while len(predicted) < len(plans):  # after an out-of-memory, a new launch begins
            predicted += predict_launch(plans[len(predicted) :])
        yield from ((record, predicted[index]) for index, record in launch.records.items())


def launches(sweep: Iterable[Record]) -> list[MeasuredLaunch]:
    """Group the measured records of a sweep by launch. A launch also includes points that it ran but that have no
    record here."""
    judged = (record for record in sweep if record.source == "measured" and record.status in JUDGED)
    on_gpus = (record for record in judged if record.config.hardware.device == "cuda")
    by_engine = grouped(on_gpus, lambda record: engine_key(record.config))
    return [launch for records in by_engine.values() for launch in _of_one_engine(_with_order(records))]


def _of_one_engine(records: Sequence[Record]) -> list[MeasuredLaunch]:
    found: list[MeasuredLaunch] = []
    for record in sorted(records, key=lambda record: len(record.before_in_launch or ())):
        before = [(micro, tokens) for micro, tokens in record.before_in_launch or ()]
        launch = next((each for each in found if before and each.shapes == before), None)
        if launch is None:
            found.append(launch := MeasuredLaunch(shapes=before))
        launch.records[len(before)] = record
        launch.shapes.append(shape_of(record.config))
    return found


def _with_order(records: Sequence[Record]) -> list[Record]:
    """Return the records with the points that ran before each in its launch. Where a record lacks them, they are
    inferred: a launch runs its points by size, and its first point has the start-up times."""
    ordered: list[Record] = []
    before: list[list[int]] = []
    for record in sorted(records, key=lambda record: prod(shape_of(record.config))):
        if record.before_in_launch is not None:
            ordered.append(record)
            continue
        if record.isolation == "fresh" or "launch_s" in record.timing:
            before = []
        ordered.append(replace(record, before_in_launch=list(before)))
        if record.isolation != "fresh":
            before.append(list(shape_of(record.config)))
    return ordered


def _with_shape(config: Config, shape: tuple[int, int]) -> Config:
    micro, tokens = shape
    return replace(config, batch=replace(config.batch, micro=micro), seq_len=replace(config.seq_len, tokens=tokens))
