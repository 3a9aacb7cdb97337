"""Tables and sentences fit the terminal: names are cut in their middle, figures never."""

import io
import re
import shlex

import pandas as pd
import pytest

from memlab.report.text import console, fitted, say, show_command, show_frame, show_table

NAME = "Llama_3.1_8B-zero2-allocator-checkpointing-s1024-b16-lora16-1xH200-47c90967"


@pytest.fixture
def printed(monkeypatch):
    """``printed(80, show_table, ...)``: the lines of a terminal of 80 columns."""

    def run(width, show, *arguments, **options) -> list[str]:
        monkeypatch.setenv("COLUMNS", str(width))
        out = console(io.StringIO())
        if show is show_table:
            show(out, *arguments, **options)
        else:
            show(*arguments, out, **options)
        lines = out.file.getvalue().splitlines()
        assert show is show_command or max(map(len, lines)) <= width
        return lines

    return run


def test_a_name_that_is_longer_than_the_line_keeps_both_ends():
    assert fitted("abcdefghij", 10) == "abcdefghij"
    assert fitted("abcdefghij", 7) == "abc\N{HORIZONTAL ELLIPSIS}hij"
    assert fitted("abcdefghij klm", 4) == "ab\N{HORIZONTAL ELLIPSIS}j klm"


def test_a_sentence_breaks_between_words(printed):
    lines = printed(50, say, f"The run is {NAME[:45]} of today.")
    assert [line.rstrip() for line in lines] == ["The run is", NAME[:45] + " of", "today."]


def test_a_command_can_be_copied_whatever_the_width(printed):
    words = ["python", "launch.py", "model=llama3_8b", "'allocator.conf=a b'", "zero_stage=zero3", "offload=optimizer"]
    lines = printed(40, show_command, words)
    assert len(lines) > 1 and all(len(line) <= 40 for line in lines)
    assert shlex.split("\n".join(lines).replace("\\\n", "")) == shlex.split(" ".join(words))


def test_figures_are_never_cut_and_names_in_their_middle(printed):
    lines = printed(60, show_table, "title", ["run", "tokens/s", "GiB"], [(NAME, "18,629,123", "57.75")])
    name, tokens, size = lines[-1].split()
    assert (tokens, size) == ("18,629,123", "57.75")
    assert name.startswith("Llama_3.1_8B") and name.endswith("47c90967") and len(name) < len(NAME)


def test_columns_that_can_be_spared_are_named_when_they_are(printed):
    rows = [("a" * 40, "1,000", "2,000", "3,000")]
    wide, narrow = (
        printed(width, show_table, "t", ["run", "x", "y", "z"], rows, spare=("y", "z")) for width in (80, 60)
    )
    assert "2,000" in "".join(wide) and "too narrow" not in "".join(wide)
    assert "2,000" not in "".join(narrow) and "3,000" in "".join(narrow)
    assert narrow[-1] == "The terminal is too narrow for: y."


def test_what_is_the_same_in_all_rows_is_said_once(printed):
    rows = [("a", "1", "7", "-"), ("b", "1", "8", "")]
    lines = printed(80, show_table, "title", ["name", "batch", "x", "nothing"], rows, common=("batch",))
    assert lines[0].startswith("title; batch 1") or "title; batch" in lines[0]
    assert "nothing" not in "".join(lines)


def test_a_table_without_rows_is_its_titles(printed):
    assert any("name" in line for line in printed(80, show_table, "title", ["name", "figure"], []))


def test_runs_of_a_long_table_have_the_names_of_their_folders(printed):
    frame = pd.DataFrame({"run_id": ["command-1xH200-2f58"] * 2, "path": ["m/falcon", "m/gpt2"], "rank": [0, 0]})
    lines = printed(80, show_frame, frame)
    assert any("falcon" in line for line in lines) and not any("2f58" in line for line in lines)


def test_whole_numbers_of_a_column_with_gaps_have_no_decimals(printed):
    lines = printed(80, show_frame, pd.DataFrame({"run_id": ["a", "b"], "samples": [8, None], "seconds": [0.25, 2.0]}))
    assert "8.0" not in "".join(lines) and any("8" in line and "0.25" in line for line in lines)


def test_free_characters_are_shared_by_the_columns_of_text(printed):
    lines = printed(100, show_table, "Values", ["key", "A", "B"], [["command", "a bc " * 30, "d ef " * 30]], left=3)
    row = next(line for line in lines if "command" in line)
    _, first, second = re.split(r"\s{2,}", row.strip())
    assert abs(len(first) - len(second)) <= len("a bc ")
