"""The commands around the analysis: what they print, write and refuse, and that they need no torch and no Hydra."""

import errno
import gzip
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from folders import make_config, make_record, write

from memlab.analyse.collect import collect
from memlab.cli import main as cli
from memlab.core.config import Offload
from memlab.system.terminal import safe

HEAVY = ("torch", "deepspeed", "hydra", "omegaconf", "transformers", "accelerate")


@pytest.fixture
def sweep(tmp_path):
    for tokens in (256, 512, 1024):
        write(tmp_path, make_record(make_config(tokens), allocated=tokens * 2**20))
        config = make_config(tokens, offload=Offload(optimizer="cpu"))
        choices = {"zero_stage": "zero2", "offload": "optimizer"}
        write(tmp_path, make_record(config, choices, allocated=tokens * 2**19, seconds=1.0))
    return tmp_path


def run(*words) -> int:
    with pytest.raises(SystemExit) as ended:
        cli.main([str(word) for word in words])
    return ended.value.code


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["table"], "6 points"),
        (["table", "--estimates"], "accelerate's estimate"),
        (["show"], "6 points"),
        (["table", "--phases"], "backward"),
        (["table", "--where", "offload=none"], "3 points"),
        (["diff", "--by", "offload"], "Effect of offload over all pairs"),
        (["diff", "--by", "offload", "--all"], "iterations per second"),
        (["fit"], "1.000 MiB x tokens"),
        (["advise", "--samples", "1000", "--seq-len", "512"], "Use offload=none with batch 1 x 1 accumulation"),
    ],
)
def test_commands_print(sweep, capsys, words, told):
    command, *options = words
    assert run(command, sweep, *options) == 0
    assert told in capsys.readouterr().out


def test_diff_of_two_folders_of_runs_names_the_folders_without_their_paths(tmp_path, capsys):
    for name, seconds in (("before", 0.5), ("after", 1.0)):
        for tokens in (256, 512):
            write(tmp_path / name, make_record(make_config(tokens), seconds=seconds))
    assert run("diff", tmp_path / "before", tmp_path / "after") == 0
    assert "after instead of before: " in capsys.readouterr().out.split(str(tmp_path))[0]


def test_diff_of_two_sweeps_pairs_all_points_and_fails_over_a_limit(tmp_path, capsys, monkeypatch):
    for name, more, last in (("before", 0, "ok"), ("after", 10, "gpu_oom")):
        for tokens in (256, 512):
            for optimizer in ("none", "cpu"):
                config = make_config(tokens, offload=Offload(optimizer=optimizer))
                choices = {"zero_stage": "zero2", "offload": optimizer}
                grown = more * (tokens == 512 and optimizer == "cpu")
                write(tmp_path / name, make_record(config, choices, allocated=(180 + grown) * 2**20))
        write(tmp_path / name, make_record(make_config(2048), status=last))
    write(tmp_path / "before", make_record(make_config(4096)))
    folders = (tmp_path / "before", tmp_path / "after")
    monkeypatch.setenv("COLUMNS", "400")  # each sentence on a line of its own
    assert run("diff", *folders) == 0
    first, *lines = capsys.readouterr().out.splitlines()
    assert first == (
        "4 pairs, after instead of before: median and largest change of peak allocated +0.0 % and +5.6 %, "
        "peak reserved +0.0 % and +5.0 %, step time +0.0 % and +0.0 %."
    )
    ended, unpaired = "before ran, after ran out of GPU memory", "1 point without a partner"
    assert lines[0].startswith("1 more pair: ") and ended in lines[0]
    assert lines[1].startswith(unpaired) and "-s4096-" in lines[1] and "only in before" in lines[1]
    rows = [line.split() for line in lines if line.startswith("offload=")]
    assert rows[0][:2] == ["offload=cpu", "512"] and len(rows) == 4
    words = ["diff", *folders, "--where", "status=ok", "--fail-over"]
    assert (run(*words, "5%"), run(*words, "0.5GiB")) == (0, 0)
    capsys.readouterr()
    assert (run(*words, "2"), run("diff", *folders, "--fail-over", "9GiB")) == (1, 1)
    over = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Over ")]
    assert over == [
        "Over 2 % of peak reserved memory: 1 of 4 pairs, worst offload=cpu batch 1 x 512 tokens "
        "(+5.0 %, 0.20 to 0.21 GiB).",
        "Over 9 GiB of peak reserved memory: 1 of 5 pairs, worst offload=none batch 1 x 2,048 tokens "
        "(before ran, after ran out of GPU memory).",
    ]


def test_a_run_out_of_memory_is_over_any_limit_though_it_reserved_little(tmp_path, capsys):
    fits, record = make_record(make_config(512)), make_record(make_config(2048))
    folders = write(tmp_path, fits), write(tmp_path, replace(record, status="gpu_oom"))
    assert run("diff", *folders, "--fail-over", "9GiB") == 1
    assert capsys.readouterr().out.splitlines()[-1].endswith("(A ran, B ran out of GPU memory).")


def test_a_folder_is_not_compared_with_itself(sweep, capsys):
    assert run("diff", sweep, sweep) == 2
    assert "both are the same folder. Name two." in capsys.readouterr().err


def test_diff_of_two_runs_fails_over_a_limit(sweep, capsys):
    small, large = (next(sweep.glob(f"*zero2-s{tokens}-*")) for tokens in (256, 512))
    assert run("diff", large, small, "--fail-over", "2%") == 0
    capsys.readouterr()
    assert run("diff", small, large, "--fail-over", "2%") == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("Over 2 % of peak reserved memory: 1 of 1 pair, worst B against A batch 1 x 512 tokens (+")


def test_diff_of_two_runs(sweep, capsys):
    first, second = sorted(sweep.glob("*-s512-*"))
    assert run("diff", first, second) == 0
    out = capsys.readouterr().out
    assert out.startswith("B takes ")
    assert "offload.optimizer" in out
    assert "peak allocated" in out


def test_table_files(sweep, tmp_path, capsys):
    files = {name: tmp_path / f"table.{name}" for name in ("csv", "parquet", "markdown")}
    assert run("table", sweep, *(word for name, file in files.items() for word in (f"--{name}", file))) == 0
    assert len(pd.read_csv(files["csv"])) == 6
    pd.testing.assert_frame_equal(
        pd.read_parquet(files["parquet"])[["run_id", "step_seconds"]],
        pd.read_csv(files["csv"])[["run_id", "step_seconds"]],
        check_dtype=False,
    )
    assert files["markdown"].read_text().count("\n") == 2 + 6


def test_a_spreadsheet_runs_nothing_of_a_csv_file_and_numbers_stay_numbers(tmp_path):
    record = make_record(choices={"zero_stage": "=cmd|' /C calc'!A0"})
    record.summary |= {"=1+1": -2.5, "slope": -1.0}
    write(tmp_path, record)
    assert run("table", tmp_path, "--csv", tmp_path / "table.csv") == 0
    text = (tmp_path / "table.csv").read_text()
    assert "'=cmd|' /C calc'!A0" in text and "'=1+1" in text
    frame = pd.read_csv(tmp_path / "table.csv")
    assert (frame["slope"][0], frame["'=1+1"][0]) == (-1.0, -2.5)


def test_bad_folders_are_a_line_each_and_no_end(sweep, capsys):
    bad = sweep / "<img src=x onerror=alert(1)>\x1b[2J\n"
    bad.mkdir()
    (bad / "record.json").write_text("{")
    record = make_record(make_config(tokens=64))
    record.ranks[0]["losses"] = [float("nan")]
    write(sweep, record)
    assert run("table", sweep) == 0
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 2
    assert "\x1b" not in errors[0]
    assert "unreadable" in errors[0]
    assert "the loss of step 0 is None" in errors[1]


def test_markdown_escapes_names(tmp_path, capsys):
    write(tmp_path, make_record(choices={"model": "a|b<script>"}))
    assert run("table", tmp_path, "--markdown", tmp_path / "table.md") == 0
    text = (tmp_path / "table.md").read_text()
    assert "a\\|b&lt;script&gt;" in text
    assert "<script>" not in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["table", "nowhere"], "no such folder"),
        (["diff", "."], "memlab diff .: name a second run, or a second folder of runs. With --by AXIS "),
        (
            ["diff", ".", ".", "--fail-over", "much"],
            "--fail-over: must be a percentage such as 2% or a size such as 0.5",
        ),
        (["diff", ".", ".", "--fail-over", "-1%"], "--fail-over"),
        (["fit", ".", "--figure", "peak_reserved"], "Did you mean 'peak_reserved_bytes'"),
        (["fit", ".", "--margin", "5"], "argument --margin: must be less than 1.0, not 5 (memlab fit --help"),
        (["table", "."], "no readable run"),
    ],
)
def test_errors_are_one_line(tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    assert run(*words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_import(tmp_path, capsys):
    file = tmp_path / "8b-zero3-seq-default.csv"
    file.write_text("1, 100, 200, 1.0\n101, 110, 220, 1.0\n201, 120, 240, 1.0\n")
    assert run("import", "gpjt", file, "--output", tmp_path / "out") == 0
    assert "3 points" in capsys.readouterr().out
    assert run("fit", tmp_path / "out") == 0


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ("[" * 500, "'seq_len.tokens' must be a whole number, not '[[["),
        ("[" * 100_000, "column 'tokens' holds 100,000 characters; at most 1,000 are allowed"),
        ("\x1b]52;c;aGk=\x07", "'seq_len.tokens' must be a whole number, not '\\x1b]52;c;aGk=\\x07'."),
        ("9" * 400, "'seq_len.tokens' must be at most"),
    ],
)
def test_a_hostile_cell_of_an_import_is_one_short_line(tmp_path, capsys, cell, message):
    file = tmp_path / "x\x1b[2J.csv"
    file.write_text(f"tokens,mem\n{cell},5\n")
    words = ["--map", "seq_len.tokens=tokens", "peak_reserved_bytes=mem:GiB", "--set", "model=tiny"]
    assert run("import", "csv", file, *words, "--output", tmp_path / "out") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line and len(line) < 1000 and line.isprintable()
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("cell", ["inf", "1e400", "-5"])
def test_an_import_that_could_not_be_read_again_is_refused(tmp_path, capsys, cell):
    file = tmp_path / "x.csv"
    file.write_text(f"tokens,mem,count\n512,5,{cell}\n")
    words = ["--map", "seq_len.tokens=tokens", "peak_reserved_bytes=mem:GiB", "parameters=count", "--set", "model=tiny"]
    assert run("import", "csv", file, *words, "--output", tmp_path / "out") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "x.csv" in line
    assert not (tmp_path / "out").exists()


def test_names_in_a_csv_file_of_memlabs_are_read_as_they_were(tmp_path):
    file = tmp_path / "x.csv"
    file.write_text("tokens,'=mem\n512,5\n")
    words = ["--map", "seq_len.tokens=tokens", "peak_reserved_bytes==mem:GiB"]
    assert run("import", "csv", file, *words, "--output", tmp_path / "out") == 0
    assert len(collect([tmp_path / "out"]).runs) == 1


def test_safe_text():
    assert (
        safe("a\x1b[31mb\nc\ud800")
        == "a\N{REPLACEMENT CHARACTER}[31mb\N{REPLACEMENT CHARACTER}c\N{REPLACEMENT CHARACTER}"
    )


def test_analysis_imports_nothing_heavy(sweep):
    code = (
        "import importlib, pkgutil, sys, memlab.analyse, memlab.report\n"
        "for package in (memlab.analyse, memlab.report):\n"
        "    for module in pkgutil.iter_modules(package.__path__):\n"
        "        importlib.import_module(f'{package.__name__}.{module.name}')\n"
        "from memlab.analyse.collect import collect\n"
        "from memlab.analyse.table import points_table\n"
        f"points_table(collect([{str(sweep)!r}]).runs)\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


OUTPUTS = ("table --csv {}", "table --parquet {}", "table --markdown {}", "report -o {}")


def no_space(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("command", OUTPUTS)
def test_a_full_disk_is_named_and_leaves_the_old_file(sweep, tmp_path, monkeypatch, capsys, command):
    file = tmp_path / "old.txt"
    file.write_text("old")
    monkeypatch.setattr(os, "fsync", no_space)
    name, *options = command.format(file).split()
    assert run(name, sweep, *options) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert str(file) in line and "No space left on device; free some space" in line
    assert file.read_text() == "old" and not list(tmp_path.glob(".old*"))


@pytest.mark.parametrize("command", [*OUTPUTS, "figures -o {}", "import csv {source} --map batch.micro=b --output {}"])
@pytest.mark.parametrize("place", ["file/below", "x" * 300], ids=["below a file", "long"])
def test_an_output_that_cannot_be_written_is_one_line(sweep, tmp_path, capsys, command, place):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "source.csv").write_text("b,m\n1,2\n")
    name, *options = command.format(tmp_path / place, source=tmp_path / "source.csv").split()
    assert run(name, *([] if name == "import" else [sweep]), *options) in (1, 2)
    [line] = capsys.readouterr().err.splitlines()
    assert "; part of the path is a file, not a folder" in line or "; choose a shorter name" in line
    assert (tmp_path / "file").read_text() == "mine"


def test_an_output_that_is_a_folder_is_one_line(sweep, tmp_path, capsys):
    for option in ("--csv", "--parquet", "--markdown"):
        assert run("table", sweep, option, tmp_path) == 2
        [line] = capsys.readouterr().err.splitlines()
        assert "is a folder: name a file in it" in line


def test_a_table_is_compressed_by_the_name_of_its_file(sweep, tmp_path):
    assert run("table", sweep, "--csv", tmp_path / "t.csv.gz") == 0
    assert gzip.decompress((tmp_path / "t.csv.gz").read_bytes()).count(b"\n") == 7


def test_a_table_goes_into_a_pipe_or_a_device(sweep):
    assert run("table", sweep, "--csv", "/dev/null") == 0
    assert not Path("/dev/null").is_file()
