"""Every file of conf/ composes, is what it says, and is a file that the schema knows. No option can rot."""

from pathlib import Path

import pytest
import yaml

from memlab.cli.compose import conf_dir
from memlab.core.config import GROUPS
from memlab.files.conf_files import options_of

CONF = Path(conf_dir())
OPTIONS = {group: options_of(group) for group in GROUPS}
ADDED = {"experiment": options_of("experiment")}
"""Groups that are not in the defaults list: ``+group=option``."""

MUST_BE_GIVEN = {"model=hf": "model.path=some/model", "allocator=custom": "allocator.conf=max_split_size_mb:512"}


def choices_together() -> list[dict[str, str]]:
    """Each option at least once, with one from every group at a time: composing costs a tenth of a second."""
    longest = max(map(len, OPTIONS.values()))
    return [{group: names[i % len(names)] for group, names in OPTIONS.items() if names} for i in range(longest)]


@pytest.mark.parametrize("chosen", choices_together(), ids=lambda chosen: chosen["model"])
def test_every_option_composes_and_is_the_choice(composed, chosen):
    words = [f"{group}={option}" for group, option in chosen.items()]
    _, choices = composed(*words, *(MUST_BE_GIVEN[word] for word in words if word in MUST_BE_GIVEN))
    assert choices == chosen


def test_every_option_was_composed():
    seen = {(group, option) for chosen in choices_together() for group, option in chosen.items()}
    files = {(file.parent.name, file.stem) for group in GROUPS for file in (CONF / group).glob("*.yaml")}
    assert seen == files


def test_every_folder_is_a_group_and_every_group_has_a_folder():
    folders = {path.name for path in CONF.iterdir() if path.is_dir()}
    assert folders - {"hydra", "local"} == {*GROUPS, *ADDED}


@pytest.mark.parametrize("study", ADDED["experiment"])
def test_a_study_is_a_sweep_under_its_name(composed, study):
    values = yaml.safe_load((CONF / "experiment" / f"{study}.yaml").read_text())
    assert values["hydra"]["mode"] == "MULTIRUN" and values["hydra"]["sweeper"]["params"]
    config, choices = composed(f"+experiment={study}")
    assert config.name == study and "experiment" not in choices


def test_the_options_are_frozen(golden):
    golden("options.json", OPTIONS | ADDED, "the options of the config groups changed. Users have typed them: say so.")


def test_the_defaults_list_has_every_group():
    entries = yaml.safe_load((CONF / "config.yaml").read_text())["defaults"]
    defaults = [group for entry in entries if isinstance(entry, dict) for group in entry]
    assert [group for group in defaults if group in GROUPS] == list(GROUPS)


@pytest.mark.parametrize("group", ["seq_len", "batch"])
def test_a_numeric_option_is_its_number(group):
    field = {"seq_len": "tokens", "batch": "micro"}[group]
    for file in (CONF / group).glob("*.yaml"):
        assert yaml.safe_load(file.read_text())[field] == int(file.stem[1:])


@pytest.mark.parametrize("name", [name for name in OPTIONS["hardware"] if name != "auto"])
def test_a_node_has_as_many_gpus_as_its_name_says(composed, name):
    values = yaml.safe_load((CONF / "hardware" / f"{name}.yaml").read_text())
    assert name == "cpu" or values["gpus"] == int(name.rpartition("_x")[2])
