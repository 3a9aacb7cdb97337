"""Predict what was measured: the same configurations, the points that shared a launch in the order that it ran them."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from itertools import chain

from memlab.config import Config, from_dict, to_dict
from memlab.plan import Plan, engine_key, make_plan, shape_of
from memlab.predict import cache
from memlab.predict.limits import unpredictable
from memlab.predict.predict import predict_launch
from memlab.record import Record

JUDGED = ("ok", "gpu_oom")
"""The statuses that say something of GPU memory."""


@dataclass
class Launch:
    """``shapes`` are (micro batch, tokens) of all its points in order; ``records`` those that are there, by place."""

    shapes: list[tuple[int, int]]
    records: dict[int, Record] = field(default_factory=dict)

    def plans(self) -> list[Plan]:
        """A plan for every point, from a record: its points differ in shape alone."""
        record = next(iter(self.records.values()))
        config = from_dict(record.config)
        return [make_plan(_with_shape(config, shape), record.choices) for shape in self.shapes]


def predictions(sweep: Sequence[Record]) -> Iterator[tuple[Record, Record]]:
    """(measured, predicted) for the records of one sweep that can be judged."""
    found = [(launch, launch.plans()) for launch in launches(sweep)]
    traceable = [plans for _, plans in found if not unpredictable(from_dict(plans[0].config))]
    cache.make_missing(cache.deciding(chain.from_iterable(traceable)))  # all of it in one process
    for launch, plans in found:
        predicted: list[Record] = []
        while len(predicted) < len(plans):  # behind an out-of-memory another launch begins
            predicted += predict_launch(plans[len(predicted) :])
        yield from ((record, predicted[place]) for place, record in launch.records.items())


def launches(sweep: Iterable[Record]) -> list[Launch]:
    """The launches of what a sweep measured. A point that a launch ran but that has no record here is run again all the
    same."""
    by_engine: dict[str, list[Record]] = defaultdict(list)
    for record in sweep:
        judged = record.source == "measured" and record.status in JUDGED
        if judged and record.config["hardware"]["device"] == "cuda":
            by_engine[engine_key(from_dict(record.config))].append(record)
    return [launch for records in by_engine.values() for launch in _of_one_engine(_with_order(records))]


def _of_one_engine(records: Sequence[Record]) -> list[Launch]:
    found: list[Launch] = []
    for record in sorted(records, key=lambda record: len(record.before_in_launch)):
        before = [tuple(shape) for shape in record.before_in_launch]
        launch = next((each for each in found if before and each.shapes == before), None)
        if launch is None:
            launch = Launch(shapes=before)
            found.append(launch)
        launch.records[len(before)] = record
        launch.shapes.append(shape_of(from_dict(record.config)))
    return found


def _with_order(records: Sequence[Record]) -> list[Record]:
    """The records with what ran before each. Where they do not say it: a launch runs its points by size, and the first
    of them is the one that has its start-up times."""
    ordered, before = [], []
    for record in sorted(records, key=_size):
        if record.before_in_launch is not None:
            ordered.append(record)
            continue
        if record.isolation == "fresh" or "launch_s" in record.timing:
            before = []
        ordered.append(replace(record, before_in_launch=list(before)))
        if record.isolation != "fresh":
            before.append(list(shape_of(from_dict(record.config))))
    return ordered


def _size(record: Record) -> int:
    micro, tokens = shape_of(from_dict(record.config))
    return micro * tokens


def _with_shape(config: Config, shape: tuple[int, int]) -> Config:
    values = deepcopy(to_dict(config))
    values["batch"]["micro"], values["seq_len"]["tokens"] = shape
    return from_dict(values)
