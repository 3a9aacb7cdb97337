"""Traces: what a training step allocates and computes, event by event.

``trace_format.py``, ``events.py`` and ``work_items.py`` are the format. The other modules are about parts of a trace:
purposes of memory, epochs, steps that are alike, scratch memory of reductions, the GPUs of a process.
"""
