"""Questions to the machine: GPUs, processes, locks, signals, shared memory, hostfiles."""
