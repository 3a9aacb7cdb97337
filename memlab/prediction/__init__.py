"""Prediction of a run without a GPU, in the order trace -> time -> memory -> record.

::

    plan, or words of a command
     -> traces/, run_command.py   traces of the ranks, which memlab/simulator/ makes
     -> time/     clocks of the host and of the streams run through the work: step time, release delays
     -> memory/   the events go through a model of torch's allocator: peaks, verdict, breakdown
     -> prediction.py   the record

``limits.py`` holds the configurations that cannot be predicted, ``fit_outside.py`` fits the sizes of memory outside the
allocator to a user's own readings.
"""
