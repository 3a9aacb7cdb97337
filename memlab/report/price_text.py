"""Text of the price of GPUs: the share that is used, and the whole machine where it is only rented whole."""

from dataclasses import replace

from memlab.core.config import Hardware
from memlab.core.record import PREDICTED, Record
from memlab.files.conf_files import list_price
from memlab.report import units


def paid_hardware(record: Record) -> Hardware:
    """Return the hardware with the GPUs of each node that are paid: of a predicted command, those that were asked for,
    also where it leaves some idle."""
    disagreements = (record.command or {}).get("disagreements", ()) if record.source == PREDICTED else ()
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
