"""Memory: a trace replayed through the model of torch's allocator.

``replay.py`` runs a trace through ``simulator/allocator/``, with the release delays of ``release_delay.py``.
``rank_replays.py`` makes the likely replay of a rank and the extreme ones, ``rank_results.py`` the results of the
ranks, with their verdict.
"""
