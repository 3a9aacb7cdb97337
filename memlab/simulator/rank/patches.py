"""Changes of torch that every process with simulated GPUs needs."""

from memlab.simulator.rank import beside_dispatcher, collectives, cuda


def install() -> None:
    """Patch torch in this process. Call before importing libraries that ask for GPUs or keep functions of torch."""
    cuda.install()
    beside_dispatcher.install()
    collectives.install()
