"""A rank of a prediction, explained: from the trace of its shadow run."""

from collections.abc import Iterator, Mapping, Sequence

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
from memlab.predict.trace.code_digest import code_digest
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
    device = ModelledDevice(outside_parts(replays.trace, sizes), sizes.provenance)
    return explain_history(PREDICTED, history, device, begin)


def doubts(record: Record, ranks: Sequence[Explained] = ()) -> Iterator[str]:
    """Yield why the explained ``ranks`` may not be those of the record of a prediction, with what to do.

    Only a command's traces lie beside its record: they are made again for memlab's own training, by the code that
    explains them. The same trace replayed by the same code has the same peak, to the byte.
    """
    of_command = record.command is not None
    again = "Predict the command again." if of_command else "Predict it again."
    if record.environment.get("predictor") != code_digest():
        explained = "its traces are explained as they are" if of_command else "what this code predicts is explained"
        yield f"other code of memlab made this prediction; {explained}. {again}"
    recorded = {result["rank"]: result["peak_allocated_bytes"] for result in record.ranks}
    for rank in ranks:
        if of_command and rank.peak.allocated != recorded.get(rank.rank, rank.peak.allocated):
            yield (
                f"the trace of rank {rank.rank} has a peak of {rank.peak.allocated:,} bytes of allocated memory, and "
                f"the record has one of {recorded[rank.rank]:,}: they are of two predictions. {again}"
            )


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
