"""Traces of memlab's own training: what to trace, what is on disk, and what follows from other traces.

``choose_traces.py`` decides what to trace next and starts the shadow process; ``store.py`` keeps traces on disk. Other
traces need no shadow run: other sizes (``interpolate.py``), more micro-steps (``micro_steps.py``), several points of
one launch (``shared_launch.py``).
"""
