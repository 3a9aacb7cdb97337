"""Hand-written lists of config groups forget no group: a new one is used, or named here with the others."""

from dataclasses import fields

import pytest
from package_imports import ROOT

from memlab.core.config import GROUPS, LIBRARIES, Config, Sweep
from memlab.prediction.memory.fit_probability import kind
from memlab.prediction.time.calibrate import family
from tools.accuracy import errors

ALIKE_IN_A_KIND = {"model", "zero_stage", "checkpointing", "seq_len", "batch", "data", "predict", "sweep"}
"""Groups in which the runs of one kind may differ, or that do not change their memory."""

ALIKE_IN_A_FAMILY = {"allocator", "seq_len", "batch", "data", "training", "measure", "predict", "sweep"}
"""Groups in which the configurations of one family may differ, or that do not change the work of a step."""

NOT_IN_THE_ACCURACY = {"seq_len", "batch", "optimizer", "data", "training", "hardware", "measure", "predict", "sweep"}
"""Groups by which the page of errors does not break down."""


class Read:
    """A configuration that notes which of its groups are read."""

    def __init__(self, config: Config):
        self.config = config
        self.names: set[str] = set()

    def __getattr__(self, name: str):
        self.names.add(name)
        return getattr(self.config, name)


@pytest.mark.parametrize(("naming", "alike"), [(kind, ALIKE_IN_A_KIND), (family, ALIKE_IN_A_FAMILY)])
def test_a_name_of_configurations_reads_every_group_that_tells_them_apart(naming, alike, config):
    read = Read(config())
    naming(read)
    assert read.names == {*GROUPS, *LIBRARIES} - alike


def test_errors_are_broken_down_by_every_group_that_is_not_left_out():
    assert set(errors.GROUPS) == set(GROUPS) - NOT_IN_THE_ACCURACY


@pytest.mark.parametrize("key", ["objective", *(f"sweep.{each.name}" for each in fields(Sweep))])
def test_the_page_of_the_configuration_lists_every_word_of_a_key(key):
    owner, name = (Sweep, key.removeprefix("sweep.")) if "." in key else (Config, key)
    words = next(each for each in fields(owner) if each.name == name).metadata.get("choices", ())
    rows = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8").splitlines()
    row = next((row for row in rows if row.startswith(f"| `{key}` |")), "")
    assert all(f"`{word}`" in row for word in words)
