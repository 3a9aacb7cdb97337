"""The largest size of a command that fits, computed from the traces of the sizes that were run."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isqrt
from pathlib import Path

from memlab.core.config import Config
from memlab.core.record import FITS
from memlab.predict.memory.estimate import estimate
from memlab.predict.time.calibration_choice import resolve
from memlab.predict.trace.interpolate import CHECKED, MINIMUM_TOKENS, Interpolator
from memlab.predict.trace.run_command import traces_in
from memlab.predict.trace.trace_format import Trace

ONE_LENGTH = MINIMUM_TOKENS
"""Tokens of all traces, for the interpolation: the size alone varies, be it a micro batch or a length."""


def largest_interpolated(folders: Mapping[int, Path], config: Config, low: int, high: int) -> int | None:
    """Return the largest size that fits, from ``low``, which does, to below ``high``, which does not.

    ``folders``: size -> run folder, of sizes that ran to their end. ``config``: what the script used. ``None`` where
    the traces do not determine those of other sizes: every request for memory must follow one formula, which two sizes
    give and a third confirms (trace/interpolate.py).
    """
    traces = {size: traces_in(folder) for size, folder in folders.items()}
    if len(traces) < CHECKED or not all(traces.values()):
        return None
    ranks = _by_rank(traces)
    calibration = resolve(config).host
    while high - low > 1:
        size = min(max(isqrt(low * high), low + 1), high - 1)
        at_size = [interpolator.at(size, ONE_LENGTH) for interpolator in ranks]
        known = [trace for trace in at_size if trace is not None]
        if len(known) < len(at_size):
            return None
        if estimate(config, known, calibration).verdict == FITS:
            low = size
        else:
            high = size
    return low


def _by_rank(traces: Mapping[int, Mapping[int, Trace]]) -> Sequence[Interpolator]:
    """Return the interpolator of each rank. The largest size leads: kernels may work otherwise at small ones."""
    ranks = set.intersection(*(set(each) for each in traces.values()))
    largest_first = sorted(traces.items(), reverse=True)
    return [
        Interpolator([replace(each[rank], micro=size, tokens=ONE_LENGTH) for size, each in largest_first])
        for rank in sorted(ranks)
    ]
