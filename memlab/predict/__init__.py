"""Predict a run without a GPU: the real engine on a device that is not there, then a replay of PyTorch's allocator.

::

    plan -> shadow/ (a process of its own: Trainer, DeepSpeed, the model, all real; tensors without bytes)
         -> events.py (what was allocated, freed, waited for)
         -> cache.py, interpolate.py (kept, and computed for other sizes)
         -> replay.py over allocator/ -> predict.py (the record), breakdown.py, host.py

``constants.py`` holds what no trace can see, ``limits.py`` what cannot be predicted, ``snapshot.py`` replays what a
real allocator did. Only ``shadow/`` imports torch, transformers and DeepSpeed, and it runs in a process of its own.
"""
