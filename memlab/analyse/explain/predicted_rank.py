"""A rank of a prediction, explained: from the trace of its shadow run."""

from collections.abc import Mapping

from memlab.analyse.explain.device import ModelledDevice
from memlab.analyse.explain.explained import Explained, History, explain_history
from memlab.core.config import Config
from memlab.core.errors import RecordError
from memlab.core.record import PREDICTED, Record
from memlab.predict.memory.gpu_memory import gpu_memory
from memlab.predict.memory.outside import outside_parts
from memlab.predict.memory.rank_replays import RankReplays
from memlab.predict.outside.fit import sizes_from
from memlab.predict.time.calibration_choice import resolve
from memlab.predict.trace.choose_traces import traces_in_launch
from memlab.predict.trace.events import BeginPoint
from memlab.predict.trace.run_command import traces_in
from memlab.predict.trace.trace_format import Trace
from memlab.runs.folder import RunFolder


def explain_prediction(config: Config, trace: Trace, capacity: int | None = None) -> Explained:
    """Explain a rank on simulated GPUs. ``capacity``: the most that the allocator may reserve, in bytes; ``None``: as
    on the GPU of the hardware entry. The peak is one of the steps, as in a record."""
    limit = gpu_memory(config, [trace]).capacity if capacity is None else capacity
    replays = RankReplays(config, [trace], limit, resolve(config).host)
    history = History(replays.trace, config.allocator.conf, replays.recorder)  # with release delays, which are likely
    begin = next((index for index, event in enumerate(replays.trace.events) if isinstance(event, BeginPoint)), 0)
    sizes = sizes_from(config.predict.outside)
    return explain_history(PREDICTED, history, ModelledDevice(outside_parts(replays.trace, sizes)), begin)


def traces_of(folder: RunFolder, record: Record) -> Mapping[int, Trace]:
    """Return the traces of a prediction, in the order of the ranks. A command's are in its folder, those of memlab's
    own training in the cache.

    Raises :class:`RecordError` if a command's are gone, :class:`ShadowError` if memlab's own training cannot be traced
    again.
    """
    found = traces_in_launch([folder.read_plan()])[0] if record.command is None else traces_in(folder.path)
    if not found:
        raise RecordError(f"{folder}: the traces of this prediction are gone. Predict the command again.")
    return dict(sorted(found.items()))
