"""Text of the price of GPUs: the share that is used, and the whole machine where it is only rented whole."""

from memlab.core.config import Hardware
from memlab.files.conf_files import list_price
from memlab.report import units


def hourly(hardware: Hardware) -> str:
    """Write the price of the GPUs that are used, and of the machine where it is larger: ``$3.50 an hour``, ``$7.16 an
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
