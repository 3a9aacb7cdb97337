"""Prediction of a run without a GPU: the real engine on a simulated device, then a replay of PyTorch's allocator.

::

    plan -> shadow/ (a process of its own: Trainer, DeepSpeed, the model, all real; tensors without bytes)
         -> events.py (what was allocated, freed, waited for)
         -> cache.py, interpolate.py (kept, and computed for other sizes)
         -> replay.py over allocator/ -> predict.py (the record), breakdown.py, host.py

``constants.py`` holds the memory that no trace shows, ``limits.py`` the configurations that cannot be predicted.
``snapshot.py`` replays the recorded requests of a real allocator. Only ``shadow/`` imports torch, transformers and
DeepSpeed, and it runs in a process of its own.
"""
