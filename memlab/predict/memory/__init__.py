"""Memory: a trace replayed through torch's allocator.

``replay.py`` runs a trace through ``allocator/``, with the release delays of ``release_delay.py``. ``rank_replays.py``
makes the likely replay of a rank and the extreme ones, ``estimate.py`` a verdict from them, ``rank_results.py`` the
ranks of a record.
"""
