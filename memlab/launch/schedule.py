"""Schedule of a sweep: the jobs whose result is known, and the launches of the others, in the order they run."""

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from memlab.core.record import Record
from memlab.runs.job import Job, unique
from memlab.runs.results import JobResult, Schedule

JOBS_PER_LAUNCH = 64
"""Maximum jobs of a launch. With more jobs, the start-up time per job hardly falls, and each job holds a lock."""


def schedule(
    jobs: Iterable[Job],
    finished: Callable[[Job], Record | None],
    is_refused: Callable[[Job], bool],
    isolation: str,
    seed: int = 0,
) -> Schedule:
    """Sort jobs into done, unsupported and launches to run. Only reads run folders; writes and starts nothing.

    ``finished`` returns the record of an earlier run that is still valid. ``is_refused``: whether a job cannot run.
    """
    found = Schedule()
    to_run = []
    for job in unique(jobs):
        if record := finished(job):
            found.known.append(JobResult(job, record, "done"))
        elif is_refused(job):
            found.known.append(JobResult(job, None, "unsupported"))
        else:
            to_run.append(job)
    found.launches = group_into_launches(to_run, isolation, seed)
    return found


def group_into_launches(jobs: Sequence[Job], isolation: str, seed: int) -> list[list[Job]]:
    """Group jobs into launches, smallest job first. Repeats of a job are in later rounds, each in its own order."""
    rounds: dict[int, dict[str, list[Job]]] = {}
    seen: Counter[tuple[int, str]] = Counter()
    for job in jobs:
        repeat, key = job.config.measure.repeat, job.memory_key
        # Equal experiments may have several folders: each folder gets its own launch.
        if isolation == "fresh" or job.config.measure.protocol == "cold" or job.is_command:
            seen[repeat, job.subject_key] += 1
            key = f"{job.subject_key}-{seen[repeat, job.subject_key]}"
        rounds.setdefault(repeat, {}).setdefault(key, []).append(job)
    launches = []
    for groups in in_spread_orders([rounds[repeat] for repeat in sorted(rounds)], random.Random(seed)):
        ordered = [sorted(group, key=lambda job: job.size) for group in groups]
        launches += [group[i : i + JOBS_PER_LAUNCH] for group in ordered for i in range(0, len(group), JOBS_PER_LAUNCH)]
    return launches


def in_spread_orders(rounds: Sequence[Mapping[str, list[Job]]], chance: random.Random) -> Iterator[list[list[Job]]]:
    """Yield the groups of each round in shuffled order, with at least a third of a round from a group to its repeat.

    For the next round, this round's order is cut into two parts, and each part is shuffled. A single round keeps its
    order.
    """
    order = list(dict.fromkeys(key for groups in rounds for key in groups))
    if len(rounds) > 1:
        chance.shuffle(order)
    for groups in rounds:
        yield [groups[key] for key in order if key in groups]
        cut = chance.randint((len(order) + 2) // 3, max(1, 2 * len(order) // 3))
        order = [*chance.sample(order[:cut], cut), *chance.sample(order[cut:], len(order) - cut)]
