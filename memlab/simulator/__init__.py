"""Runs a training script on N simulated GPUs. Each rank leaves a trace of what it allocates and computes.

::

    simulation.py    settings that the parent gives to the processes of a command, and what they note for it
    rank/            inside a rank: simulated GPUs under torch, and the recorder (the only folder here with torch)
    trace/           the format of a trace: events, work, and what the ranks know of steps and epochs
    allocator/       model of PyTorch's CUDA caching allocator
    outside/         memory outside that allocator
    constants.py     properties of GPU models

It knows no plan, no configuration and no run folder: memlab/prediction/ runs commands with it, and
memlab/training/simulated/ memlab's own training.
"""
