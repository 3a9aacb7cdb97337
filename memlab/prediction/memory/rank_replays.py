"""Replays of one rank's trace: the likely one, and the ones that need the least and the most memory."""

from collections.abc import Sequence
from functools import cached_property

from memlab.core.config import Config
from memlab.core.record import DOES_NOT_FIT, EDGE, FITS
from memlab.prediction.memory.release_delay import furthest_ahead, with_release_delays
from memlab.prediction.memory.replay import Replay, as_plain_training, replay, replay_points
from memlab.prediction.time.calibrate import Calibration
from memlab.prediction.time.clocks import has_clocks
from memlab.prediction.traces.shared_launch import joined_points
from memlab.simulator import allocator
from memlab.simulator.trace.events import RecordStream, of_kinds
from memlab.simulator.trace.trace_format import Trace

AT_ONCE, AT_THE_NEXT_WAIT = 0, 1 << 62
"""Shortest and longest release delay of a block that a side stream used: how many requests after the host freed the
block the allocator can reuse it."""

FAST_HOST = 0.5
"""Host time of a host that runs far ahead of its GPU, as a share of the calibrated host's time. Hosts differ that
much."""

ROOMY = 0.5
"""Share of the allocator's capacity. If the likely peak is below it, the verdict skips the replays with long release
delays, unless a record needs their range. In results/, with up to four GPUs, long release delays raise reserved memory
by 14 % at the most (the ranges in docs/accuracy.json)."""


class RankReplays:
    """One rank's requests in a launch of ``points``, replayed through an allocator of ``capacity`` bytes.

    ``trace`` holds the requests with the release delays of blocks that side streams used. If the hardware entry lacks
    the speeds to compute these delays, such a block is free at once on one GPU, which waits for no other rank, and at
    the host's next wait on several GPUs.
    """

    def __init__(
        self, config: Config, points: Sequence[Trace], capacity: int, calibration: Calibration, with_curve: bool = False
    ):
        """``calibration``: gives the release delays. ``with_curve``: keep memory over the last step, for a record."""
        self._config, self._points, self._capacity, self._with_curve = config, points, capacity, with_curve
        self._calibration = calibration
        self._options = allocator.parse(config.allocator.conf)
        self._is_cold = config.measure.protocol == "cold"
        self._plain = self.trace = self._joined(points)
        self._has_side_streams = any(of_kinds(self._plain.events, RecordStream))
        self._has_delays = self._has_side_streams and has_clocks(config, points)
        self._release_delay = AT_ONCE if self._has_delays or config.hardware.world_size == 1 else AT_THE_NEXT_WAIT
        if self._has_delays:
            self.trace = self._delayed(furthest_ahead(config, calibration))

    @cached_property
    def likely(self) -> list[Replay]:
        """The replays with the likely release delays, one for each point that the launch reaches."""
        return replay_points(self.trace, self._options, self._capacity, self._release_delay, self._with_curve)

    @cached_property
    def _least(self) -> list[list[Replay]]:
        """The replays that need the least memory: every block is free at once. Empty without side streams."""
        return [self._replayed(self._plain, AT_ONCE)] if self._has_side_streams else []

    @cached_property
    def _most(self) -> list[list[Replay]]:
        """The replays that need the most memory: blocks become free at the host's next wait only, or the host runs far
        ahead of the GPU. Empty without side streams."""
        if not self._has_side_streams:
            return []
        ahead = [self._replayed(self._delayed(FAST_HOST), AT_ONCE)] if self._has_delays else []
        return [self._replayed(self._plain, AT_THE_NEXT_WAIT), *ahead]

    def verdict(self, point: int) -> str:
        """Return the verdict on a point. EDGE: whether the point fits depends on the release delays, or the allocator
        has to give cached memory back to the device during the run."""
        likely = self.likely[point]
        if likely.oom:
            return EDGE if any(not _at(replays, point).oom for replays in self._least) else DOES_NOT_FIT
        if not self._with_curve and _reserved(likely) < ROOMY * self._capacity:
            return FITS
        others = [_at(replays, point) for replays in self._most] if not likely.num_alloc_retries else []
        return EDGE if any(replay.oom or replay.num_alloc_retries for replay in (likely, *others)) else FITS

    def reserved_range(self, point: int) -> list[int]:
        """Return the lowest and the highest peak of reserved memory that a point can have, in bytes."""
        replays = [self.likely[point], *(_at(each, point) for each in (*self._least, *self._most))]
        reserved = [replay.peak_reserved for replay in replays]
        return [min(reserved), max(reserved)]

    @property
    def tightness(self) -> tuple[bool, bool, int]:
        """Sort key: the greater, the less room the first point has. Out of memory comes first, because such a replay
        ended early and its peak is too low to compare."""
        likely = self.likely[0]
        return likely.oom is not None, likely.num_alloc_retries > 0, likely.peak_reserved

    def recorder(self) -> allocator.RecordingAllocator:
        """Return an allocator for the likely replay of ``trace``, which notes what it does."""
        return allocator.RecordingAllocator(self._options, self._capacity, self._release_delay)

    def cold(self) -> Replay:
        """Return the likely replay of the first point in a plain training (``measure.protocol=cold``)."""
        if self._is_cold:
            return self.likely[0]
        return replay(as_plain_training(self.trace), self._options, self._capacity, self._release_delay)

    def fits(self, ratio: float) -> bool:
        """Return whether ``ratio`` times the predicted memory fits. The replay divides the capacity by ``ratio``
        instead, which is the same."""
        likely = self.likely[0]
        if likely.oom and ratio >= 1:
            return False
        if not likely.oom and not likely.num_alloc_retries and _reserved(likely) * ratio <= self._capacity:
            return True
        return replay(self.trace, self._options, int(self._capacity / ratio), self._release_delay).oom is None

    def _delayed(self, host: float) -> Trace:
        costs = self._calibration.costs.on_a_host(host)
        return self._joined([with_release_delays(point, self._config, costs) for point in self._points])

    def _joined(self, points: Sequence[Trace]) -> Trace:
        joined = joined_points(points)
        return as_plain_training(joined) if self._is_cold else joined

    def _replayed(self, trace: Trace, release_delay: int) -> list[Replay]:
        return replay_points(trace, self._options, self._capacity, release_delay)


def _reserved(replay: Replay) -> int:
    """Return the highest reserved memory of the whole run, including the phases before the first step."""
    return max([replay.peak_reserved, *(phase.peak_reserved_bytes for phase in replay.phases.values())])


def _at(replays: Sequence[Replay], point: int) -> Replay:
    """Return the replay of a point, or the last replay if the launch ended before that point."""
    return replays[min(point, len(replays) - 1)]
