"""Prediction of a run without a GPU, in the order trace -> time -> memory -> record.

::

    plan
     -> trace/    the real engine on a simulated device, in a process of its own, records events and work;
                  choose_traces.py decides what to trace, and interpolates the rest
     -> time/     clocks of the host and of the streams run through the work: step time, release delays
     -> memory/   the events go through a model of torch's allocator: peaks, verdict, breakdown
     -> prediction.py   the record

``jobs.py`` predicts the jobs of a sweep, ``families.py`` a small model of every family. ``constants.py`` holds the
memory that no trace shows, ``limits.py`` the configurations that cannot be predicted. Only ``trace/shadow/`` imports
torch, transformers and DeepSpeed.
"""
