"""Second line of the answer: the time of a step, of an epoch or of the whole run, and the dollars."""

from collections.abc import Iterator

from memlab.analyse.extent import extent
from memlab.core.basis import MEASURED
from memlab.core.record import PREDICTED, WORK, Record
from memlab.report import units
from memlab.report.price_text import hourly, paid_hardware, whole_machine


def speed(record: Record) -> str:
    """Write step, epoch or run, and their price, each with how it is known; empty for a run without a step time."""
    if record.status != "ok" or not record.ranks:
        return ""
    if not record.summary.get("step_seconds"):
        return f"The step time is not known{_why_unknown(record)}."
    basis = record.basis
    step = units.known(f"{units.seconds(record.summary['step_seconds'])} a step", basis)
    if basis.is_bound and basis.reason:
        step += f" ({basis.reason})"
    text = "; ".join([step, *_of_training(record)])
    return f"{text[0].upper()}{text[1:]}."


def _of_training(record: Record) -> Iterator[str]:
    """Write time and dollars of the epoch or the run; without either, the rate and the price of a million tokens."""
    summary, basis, per_hour = record.summary, record.basis, paid_hardware(record).total_usd_per_hour
    at = _hourly(record)
    price = f" (at {at})" if at else ""
    known = extent(record) if record.source != MEASURED else None
    if known:
        seconds = known.steps * summary["step_seconds"]
        name = ", ".join(filter(None, [known.name, units.counted(known.steps, "step")]))
        dollars = "" if per_hour is None else units.usd_of(seconds / 3600 * per_hour, basis)
        dollars = dollars.removeprefix("at least ")
        between = " and " if basis.is_bound else ", "
        yield f"{name}: {units.duration_of(seconds, basis)}{f'{between}{dollars}' if dollars else ''}{price}"
    else:
        if (rate := summary.get("tokens_per_second")) is not None:
            yield units.known(f"{units.number(rate)} tokens/s", basis, is_rate=True)
        if (usd := summary.get("usd_per_million_tokens")) is not None:
            yield f"{units.usd_of(usd, basis)} a million tokens{price}"
    if per_hour is None and record.source == PREDICTED:
        yield "no price is known (hardware.usd_per_gpu_hour=...)"
    if any(one.get("is_stream") and one["batches"] is None for one in (record.command or {}).get("epochs") or ()):
        yield "the data decide how long an epoch is"
    if any(one["choice"] == "generation" for one in (record.command or {}).get("ranges") or ()):
        yield "the data decide how long generations are"


def _hourly(record: Record) -> str:
    """Write the price of an hour: of a prediction also that of the whole machine; of a bound nothing else."""
    hardware = paid_hardware(record)
    if record.source != MEASURED:
        return hourly(hardware) if whole_machine(hardware) or not record.basis.is_bound else ""
    return "" if hardware.total_usd_per_hour is None else f"{units.usd(hardware.total_usd_per_hour)} an hour"


def _why_unknown(record: Record) -> str:
    reason = next((why for rank in record.ranks if (why := (rank.get("unknown") or {}).get(WORK))), None)
    return f" ({reason})" if reason else ""
