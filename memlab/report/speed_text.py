"""Second line of the answer: the time of a step, of an epoch or of the whole run, and the dollars, of the share of a
machine that is used and of the whole machine where it is only rented whole."""

from collections.abc import Iterator
from dataclasses import replace

from memlab.analyse.command_facts import extent
from memlab.core.basis import MEASURED
from memlab.core.config import Hardware
from memlab.core.record import PREDICTED, WORK, Record
from memlab.files.conf_files import list_price
from memlab.report import units
from memlab.report.verdict_text import why_unknown


def speed(record: Record) -> str:
    """Write step, epoch or run, and their price, each with how it is known; empty for a run without a step time."""
    if record.status != "ok" or not record.ranks:
        return ""
    if not record.summary.get("step_seconds"):
        reason = why_unknown(record, WORK)
        return f"The step time is not known{f' ({reason})' if reason else ''}."
    basis = record.basis
    step = units.known(f"{units.seconds(record.summary['step_seconds'])} a step", basis)
    if basis.is_bound and basis.reason:
        step += f" ({basis.reason})"
    text = "; ".join([step, *_of_training(record)])
    return f"{text[0].upper()}{text[1:]}."


def _of_training(record: Record) -> Iterator[str]:
    """Write the time and the price of the epoch or of the run. Where its length is not known, or tokens were measured,
    write the rate, and the price of a million tokens or of an hour."""
    summary, basis, per_hour = record.summary, record.basis, paid_hardware(record).total_usd_per_hour
    rate = summary.get("tokens_per_second")
    at = _hourly(record)
    price = f" (at {at})" if at else ""
    known = extent(record) if record.source != MEASURED or rate is None else None
    if known:
        seconds = known.steps * summary["step_seconds"]
        name = ", ".join(filter(None, [known.name, units.counted(known.steps, "step")]))
        dollars = "" if per_hour is None else units.usd_of(seconds / 3600 * per_hour, basis)
        dollars = dollars.removeprefix("at least ")
        between = " and " if basis.is_bound else ", "
        yield f"{name}: {units.duration_of(seconds, basis)}{f'{between}{dollars}' if dollars else ''}{price}"
    else:
        if rate is not None:
            yield units.known(f"{units.number(rate)} tokens/s", basis, is_rate=True)
        if (usd := summary.get("usd_per_million_tokens")) is not None:
            yield f"{units.usd_of(usd, basis)} a million tokens{price}"
        elif per_hour is not None:
            yield at or hourly(paid_hardware(record))
    if per_hour is None and record.source == PREDICTED:
        yield "no price is known (hardware.usd_per_gpu_hour=...)"
    if any(one.get("is_stream") and one["batches"] is None for one in record.command.get("epochs", ())):
        yield "the data decide how long an epoch is"
    if any(one["choice"] == "generation" for one in record.command.get("ranges", ())):
        yield "the data decide how long generations are"


def _hourly(record: Record) -> str:
    """Write the price of an hour: of a prediction also that of the whole machine; of a bound nothing else."""
    hardware = paid_hardware(record)
    if record.source != MEASURED:
        return hourly(hardware) if whole_machine(hardware) or not record.basis.is_bound else ""
    return "" if hardware.total_usd_per_hour is None else f"{units.usd(hardware.total_usd_per_hour)} an hour"


def paid_hardware(record: Record) -> Hardware:
    """Return the hardware with the GPUs of each node that are paid: of a predicted command, those that were asked for,
    also where it leaves some idle."""
    disagreements = record.command.get("disagreements", ()) if record.source == PREDICTED else ()
    asked = next((each["composed"] for each in disagreements if each["key"] == "hardware.gpus"), None)
    return record.config.hardware if asked is None else replace(record.config.hardware, gpus=asked)


def hourly(hardware: Hardware) -> str:
    """Write the price of the GPUs that are paid, and of the machine where it is larger: ``$3.50 an hour``, ``$7.16 an
    hour for 4 GPUs; Lambda rents 8, for $14.32``. Empty if the price is not known."""
    if hardware.total_usd_per_hour is None:
        return ""
    used, whole = f"{units.usd(hardware.total_usd_per_hour)} an hour", whole_machine(hardware)
    return f"{used} for {units.counted(hardware.world_size, 'GPU')}; {whole}" if whole else used


def whole_machine(hardware: Hardware) -> str:
    """Write what the provider of the list price rents: ``Lambda rents 8, for $14.32``. Empty for another price, and
    where all GPUs of the machine are used."""
    price = list_price(hardware.gpu, hardware.gpus)
    if price is None or price.usd_per_gpu_hour != hardware.usd_per_gpu_hour:
        return ""
    gpus = hardware.nodes * price.machines(hardware.gpus) * price.machine_gpus
    if gpus == hardware.world_size:
        return ""
    return f"{price.provider} rents {gpus}, for {units.usd(gpus * price.usd_per_gpu_hour)}"
