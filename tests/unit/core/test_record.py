"""The record: its keys are frozen."""

import dataclasses

from memlab.core.record import FINAL, STATUSES, Phase, RankResult, Record


def test_the_keys_are_frozen(golden):
    keys = {cls.__name__: sorted(f.name for f in dataclasses.fields(cls)) for cls in (Record, RankResult, Phase)}
    golden(
        "record_keys.json",
        keys,
        "the record's keys changed: old records need a default (runs/migrate.py), users the CHANGELOG.",
    )


def test_final_statuses_are_statuses():
    assert set(FINAL) < set(STATUSES)
