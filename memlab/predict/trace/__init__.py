"""Traces: what a training step allocates and computes, event by event.

``trace_format.py``, ``events.py`` and ``work_items.py`` are the format. ``choose_traces.py`` decides what to trace
next and starts the shadow process (``shadow_process.py``, ``shadow/``); ``store.py`` keeps traces on disk.
``choose_traces.py`` gets other traces without a shadow run: other sizes (``interpolate.py``), more micro-steps
(``micro_steps.py``). ``shared_launch.py`` joins the traces of several points of one launch.
"""
