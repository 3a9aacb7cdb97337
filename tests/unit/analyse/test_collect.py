"""Walking folders: what is found, what is skipped with one clear line, and what is read only once."""

import json
import os
import time

import pytest
from folders import make_config, make_record, write

from memlab.analyse import collect as collecting
from memlab.analyse import run_cache
from memlab.analyse.collect import collect
from memlab.core.errors import MemlabError
from memlab.files import json_file
from memlab.runs.folder import RunFolder


def only_reason(root) -> str:
    """The one reason for which something was skipped; it is one line, and the run beside it is still found."""
    found = collect([root])
    assert len(found.runs) == 1
    (skipped,) = found.skipped
    assert "\n" not in skipped.reason
    return skipped.reason


@pytest.fixture
def root(tmp_path):
    write(tmp_path, make_record())
    return tmp_path


def put(root, text: str | bytes, name: str = "bad"):
    folder = root / name
    folder.mkdir()
    (folder / RunFolder.RECORD).write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder


def changed(**values) -> str:
    return json.dumps({**make_record().to_json(), **values})


def nested(levels: int) -> dict:
    values: dict = {}
    for _ in range(levels):
        values = {"a": values}
    return values


def with_rank(**values) -> str:
    record = make_record().to_json()
    record["ranks"][0] |= values
    return json.dumps(record)


def test_finds_runs_below_and_at_a_path(root):
    (run,) = collect([root]).runs
    assert collect([run.path]).runs == [run]
    assert collect([root, run.path]).runs == [run]
    assert run.summary["peak_reserved_bytes"]["max"] == 120 * 2**20
    assert run.phases["forward"]["peak_reserved_bytes"] == {"max": 100 * 2**20, "min": 100 * 2**20}


def test_a_path_that_does_not_exist_is_an_error(tmp_path):
    with pytest.raises(MemlabError, match="no such folder"):
        collect([tmp_path / "nowhere"])


def test_an_unfinished_run(root):
    (root / "unfinished").mkdir()
    (root / "unfinished" / RunFolder.PLAN).write_text("{}")
    assert only_reason(root) == "no record.json: the run is not over, or was killed"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (changed()[:500], "record.json: unreadable"),
        ("", "record.json: unreadable"),
        (b"\xff\xfe{}", "record.json: unreadable"),
        ("[" * 100_000, "record.json: unreadable"),
        ("9" * 5000, "record.json: unreadable"),
        ("[]", "not a record"),
        ('{"results": 1}', "schema version null"),
        (changed(schema_version=99), "schema version 99; this memlab reads version 1"),
        (changed(status="great"), "damaged record"),
        (changed(ranks=[1]), "damaged record: 'ranks[0]' must be keys with values, not 1."),
        (with_rank(phases={"forward": {"peak_allocated_bytes": "1"}}), "ranks[0].phases.forward"),
        (changed(summary={"usd": "<script>alert(1)</script>"}), "damaged record: 'summary.usd' must be a number, or"),
        (changed(summary={"peak_reserved_bytes": {"max": 1}}), "'summary.peak_reserved_bytes.mean' is missing."),
        (changed(summary={"usd": 1}).replace('"usd": 1', f'"usd": 1{"0" * 400}'), "is not a finite number"),
        (changed(run_id="a\x1b[2Jb"), "'run_id' must be one line of printable text, not 'a\\x1b[2Jb'."),
        (changed(choices={"model": {"a": 1}}), "damaged record: 'choices.model' must be text, not {'a': 1}."),
        (changed(config={"batch": 1}), "'config.batch' is a config group with keys of its own, not the value 1."),
        (changed(config=nested(600)), "nested more than 32 levels deep"),
        (changed(reason="\ud800"), "surrogates not allowed"),
    ],
)
def test_a_bad_record_is_one_line(root, text, reason):
    put(root, text)
    assert reason in only_reason(root)


def test_a_record_too_large(root, monkeypatch):
    monkeypatch.setattr(json_file, "LARGEST", 1 << 20)
    put(root, " " * (1 << 21))
    assert "2,097,152 bytes" in only_reason(root)


def test_a_record_that_is_a_link(root, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "secret"
    elsewhere.write_text(changed())
    (root / "bad").mkdir()
    (root / "bad" / RunFolder.RECORD).symlink_to(elsewhere)
    assert only_reason(root) == "record.json: not a regular file (links are not followed)."


def test_a_pipe_does_not_hang(root):
    (root / "bad").mkdir()
    os.mkfifo(root / "bad" / RunFolder.RECORD)
    assert "not a regular file" in only_reason(root)


def test_a_link_out_of_the_tree_is_told_and_one_inside_is_not_followed(root, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside")
    write(outside, make_record(make_config(tokens=7)))
    (root / "out").symlink_to(outside)
    (root / "loop").symlink_to(root)
    assert only_reason(root) == "a link to another folder; links are not followed"


def test_a_name_that_is_not_utf8(root):
    os.mkdir(os.path.join(os.fsencode(root), b"\xff"))
    assert only_reason(root) == "the folder's name is not UTF-8"


@pytest.mark.parametrize("written", ["NaN", "Infinity", "1e999"])
def test_a_figure_that_is_no_finite_number_is_refused(root, written):
    text = changed(summary={"peak_reserved_bytes": {"max": 123456789, "mean": 1, "min": 1}})
    put(root, text.replace("123456789", written))
    found = collect([root])
    assert len(found.runs) == 1
    assert "is not JSON" in found.skipped[0].reason or "is not a finite number" in found.skipped[0].reason


def test_a_prediction_has_a_verdict_and_ranges(tmp_path):
    predicted = make_record(peak_reserved_range_bytes=[1, 2], verdict="edge", fit_probability=0.5)
    predicted.summary |= {"verdict": "edge", "fit_probability": 0.5}
    write(tmp_path, predicted)
    found = collect([tmp_path])
    assert found.skipped == []
    assert found.runs[0].summary["verdict"] == "edge"


@pytest.mark.parametrize("end", [0.5, None])
def test_a_prediction_has_a_range_of_its_step_time_that_may_be_open(tmp_path, end):
    predicted = make_record()
    predicted.summary["step_seconds_basis"] = "lower bound"
    predicted.timing["step_s_range"] = [0.25, end]
    write(tmp_path, predicted)
    found = collect([tmp_path])
    assert found.skipped == []
    assert found.runs[0].summary["step_seconds_basis"] == "lower bound"


@pytest.mark.parametrize("range_", [0.25, ["long", None], "long"])
def test_a_range_that_is_none_is_refused(tmp_path, range_):
    predicted = make_record()
    predicted.timing["step_s_range"] = range_
    write(tmp_path, predicted)
    assert "timing.step_s_range" in collect([tmp_path]).skipped[0].reason


@pytest.mark.parametrize("verdict", [3, "two\nlines"])
def test_a_verdict_that_is_no_word_is_refused(tmp_path, verdict):
    predicted = make_record()
    predicted.summary["verdict"] = verdict
    write(tmp_path, predicted)
    assert "summary.verdict" in collect([tmp_path]).skipped[0].reason


def test_large_logs_are_not_opened(root):
    folder = put(root, changed(run_id="with-logs"))
    (folder / RunFolder.LOGS).mkdir()
    (folder / RunFolder.LOGS / "rank0.log").write_bytes(b"x" * 10 * 2**20)
    begin = time.perf_counter()
    assert len(collect([root]).runs) == 2
    assert time.perf_counter() - begin < 1


def test_the_second_reading_opens_no_record(root, monkeypatch):
    first = collect([root]).runs
    monkeypatch.setattr(collecting, "read_run", None)
    assert collect([root]).runs == first


def test_a_changed_record_is_read_again_and_a_removed_one_forgotten(root):
    (run,) = collect([root]).runs
    record = RunFolder(run.path).read_record()
    record.reason = "measured again"
    RunFolder(run.path).finish(record)
    assert collect([root]).runs[0].reason == "measured again"
    os.unlink(os.path.join(run.path, RunFolder.RECORD))
    assert collect([root]).runs == []


def test_a_sibling_with_the_same_beginning_keeps_its_entries(tmp_path, monkeypatch):
    write(tmp_path / "a", make_record())
    write(tmp_path / "ab", make_record())
    collect([tmp_path / "ab"])
    collect([tmp_path / "a"])
    monkeypatch.setattr(collecting, "read_run", None)
    assert len(collect([tmp_path / "ab"]).runs) == 1


@pytest.mark.parametrize("broken", ["file", "garbage"])
def test_without_a_usable_index_everything_is_read(root, broken, monkeypatch, tmp_path):
    cache = tmp_path / "cache"
    if broken == "file":
        cache.write_text("not a folder")
    else:
        (cache / "memlab").mkdir(parents=True)
        (cache / "memlab" / run_cache.cache_file().name).write_bytes(b"garbage" * 1000)
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    assert len(collect([root / collect([root]).runs[0].run_id]).runs) == 1


def test_many_folders_are_read_by_all_cores(tmp_path, monkeypatch):
    monkeypatch.setattr(collecting, "MANY", 3)
    for tokens in range(1, 8):
        write(tmp_path, make_record(make_config(tokens=tokens)))
    put(tmp_path, "{")
    found = collect([tmp_path])
    assert len(found.runs) == 7
    assert len(found.skipped) == 1
