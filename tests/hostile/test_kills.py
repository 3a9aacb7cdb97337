"""A sweep that is killed at any moment loses nothing and leaves nothing: two tries of ``make faults``."""

import signal

import kills
import pytest


@pytest.fixture(scope="module")
def wanted(tmp_path_factory):
    return kills.undisturbed(tmp_path_factory.mktemp("kills") / "undisturbed")


@pytest.mark.cpu
@pytest.mark.long(45)
@pytest.mark.parametrize("number", [1, 4])  # memlab after two records; memlab and its deadman before the first
def test_nothing_is_lost_and_nothing_is_left(wanted, tmp_path, number):
    outcome = kills.attempt(number, tmp_path / "sweep", wanted)
    assert outcome.hit and not outcome.problems, outcome


def test_half_of_the_kills_come_after_the_first_record():
    drawn = [kills.drawn(number) for number in range(100)]
    assert sum(kill.records > 0 for kill in drawn) == 50
    assert {role for kill in drawn for role in kill.victims} == set(kills.VICTIMS)
    assert {kill.signal for kill in drawn} == set(kills.SIGNALS)
    at_once = [kill for kill in drawn if {"memlab", "deadman"} <= set(kill.victims)]
    assert any(kill.signal == signal.SIGKILL for kill in at_once)
    assert drawn == [kills.drawn(number) for number in range(100)]


def test_the_page_keeps_its_other_sections(tmp_path):
    page = tmp_path / "reliability.md"
    page.write_text("# Reliability\n\n## Kills\n\nold\n\n## Other\n\ntext\n")
    one = kills.Try(0, ("rank",), "SIGKILL", {"rank": 2}, records=3)
    kills.put_section(page, kills.summary([one]))
    assert page.read_text().startswith("# Reliability\n\n## Other\n\ntext\n\n## Kills\n")
    assert "**1 of 1 tries were good.**" in page.read_text() and "old" not in page.read_text()
