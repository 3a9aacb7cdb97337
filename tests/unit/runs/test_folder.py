"""The run folder: whole files or none, no secrets, and clear words for what cannot be read."""

import errno
import json
import os
import threading
from pathlib import Path

import pytest

from memlab.core.errors import FolderError, RecordError, WriteError
from memlab.core.plan import make_plan
from memlab.files.disk import write_output, writing
from memlab.files.json_file import read_json, write_json
from memlab.files.redaction import is_secret_name
from memlab.runs.folder import RunFolder, SweepFolder

HF_TOKEN = "hf_" + "Ab3" * 10


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "run").mkdir()
    return RunFolder(tmp_path / "run")


@pytest.fixture
def plan(config):
    return make_plan(config(), {"model": "tiny"})


# --- the record


def test_a_record_comes_back_as_it_was_written(folder, record):
    written = record()
    folder.finish(written)
    assert folder.read_record() == written
    assert next(iter(read_json(folder.path / folder.RECORD))) == "schema_version"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "unreadable"),
        ('{"schema_version": 1, "run', "unreadable"),
        ("[" * 100_000, "unreadable"),
        ("[]", "not a record"),
        ('{"schema_version": 1}', "incomplete record, without run_id, source"),
    ],
)
def test_a_file_that_holds_no_record_is_refused(folder, text, words):
    (folder.path / folder.RECORD).write_text(text)
    with pytest.raises(RecordError, match=words):
        folder.read_record()


def test_bytes_that_are_no_text_are_refused(folder):
    (folder.path / folder.RECORD).write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RecordError, match="unreadable"):
        folder.read_record()


def test_a_run_without_a_record_is_not_over(folder):
    with pytest.raises(RecordError, match="no such file"):
        folder.read_record()


# --- whole or not at all


def no_space(*args, **kwargs):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("call", ["fsync", "replace", "chmod"])
@pytest.mark.parametrize("before", [None, '{"old": 1}'])
def test_a_full_disk_leaves_what_was_there(tmp_path, monkeypatch, call, before):
    path = tmp_path / "record.json"
    if before:
        path.write_text(before)
    monkeypatch.setattr(os, call, no_space)
    with pytest.raises(WriteError, match="No space left on device") as error:
        write_json(path, {"new": 1})
    assert str(path) in str(error.value)
    assert [file.read_text() for file in tmp_path.iterdir()] == ([before] if before else [])


def test_an_interrupt_while_writing_leaves_nothing(tmp_path, monkeypatch):
    def interrupt(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_json(tmp_path / "record.json", {})
    assert not list(tmp_path.iterdir())


def test_a_kill_while_writing_leaves_no_half_file(tmp_path, folder, plan):
    """What a SIGKILL leaves behind is a temporary file, which nobody reads and the next run removes."""
    (folder.path / ".record.json.abc.tmp").write_text('{"half')
    with pytest.raises(RecordError, match="no such file"):
        folder.read_record()
    folder.start(plan, [])
    assert not list(folder.path.glob(".*.tmp"))


def test_a_run_folder_that_has_become_a_link_is_not_locked(folder):
    folder.claim()
    folder.path.rename(folder.path.with_name("elsewhere"))
    folder.path.symlink_to("elsewhere")
    with pytest.raises(FolderError, match=r"run/\.lock: not a regular file \(links are not followed\)"), folder.lock():
        pass


def test_other_people_may_read_the_files(tmp_path):
    write_json(tmp_path / "x.json", {})
    assert (tmp_path / "x.json").stat().st_mode & 0o777 == 0o644


def test_what_is_no_number_is_not_known(tmp_path):
    write_json(tmp_path / "x.json", {"a": float("nan"), "b": [float("inf"), (1.5, -float("inf"))], "c": 2})
    assert json.loads((tmp_path / "x.json").read_text()) == {"a": None, "b": [None, [1.5, None]], "c": 2}


# --- secrets


@pytest.mark.parametrize(
    "name",
    [
        *("HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "my_password", "APIKEY"),
        *("COMET_KEY", "DB_PASS", "GITHUB_PAT", "azure_pat"),
        *("MYSQL_PWD", "DB_PW", "PASSPHRASE", "DATABASE_URL", "SENTRY_DSN", "AZURE_STORAGE_CONNECTION_STRING"),
    ],
)
def test_values_of_secret_variables_are_blanked(tmp_path, monkeypatch, name):
    monkeypatch.setenv(name, "open sesame")
    write_json(tmp_path / "x.json", {"reason": "cannot: open sesame!", "open sesame": ["open sesame"]})
    assert "sesame" not in (tmp_path / "x.json").read_text()
    assert is_secret_name(name)


def test_a_secret_within_another_leaves_no_rest_of_it(tmp_path, monkeypatch):
    monkeypatch.setenv("A_TOKEN", "open sesame")
    monkeypatch.setenv("B_TOKEN", "open sesame, please")
    write_json(tmp_path / "x.json", {"a": "say: open sesame, please!"})
    assert read_json(tmp_path / "x.json") == {"a": "say: <redacted>!"}


@pytest.mark.parametrize("secret", ['quo"te\\d pass', "pässwörter", "two\nlines", "tab\there"])
def test_a_secret_is_found_though_json_escapes_it(tmp_path, monkeypatch, secret):
    monkeypatch.setenv("MY_SECRET", secret)
    write_json(tmp_path / "x.json", {"a": f"<{secret}>"})
    assert read_json(tmp_path / "x.json") == {"a": "<<redacted>>"}


def test_a_secret_that_looks_like_a_number_damages_no_number(tmp_path, monkeypatch):
    monkeypatch.setenv("MAX_TOKENS", "10000000")
    write_json(tmp_path / "x.json", {"bytes": 1000000000})
    assert read_json(tmp_path / "x.json") == {"bytes": 1000000000}


def test_no_file_of_a_run_holds_a_secret(folder, config, record, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "wandb-key-0123456789")
    monkeypatch.setenv("HF_TOKEN", "not-of-the-usual-form")
    secrets = [HF_TOKEN, "wandb-key-0123456789", "not-of-the-usual-form", "me:sesame"]
    spilled = " ".join([*secrets[:3], "https://me:sesame@host/x"])
    (folder.path / folder.HYDRA).mkdir()
    for name in ("config.yaml", "overrides.yaml", "hydra.yaml"):
        (folder.path / folder.HYDRA / name).write_text(f"- data.path={spilled}\n")
    folder.start(make_plan(config({"data.path": spilled}), {}), ["deepspeed", spilled])
    folder.rank_log(0).write_text(f"401 for {spilled}\nstep 1\n")
    folder.launcher_log.write_bytes(b"\xff " + spilled.encode())
    folder.finish(record(reason=spilled, environment={"variables": {"X": spilled}}))
    files = [path for path in folder.path.rglob("*") if path.is_file()]
    assert len(files) == 9
    for path in files:
        text = path.read_text(errors="replace")
        assert not [secret for secret in secrets if secret in text], path.name
    assert folder.rank_log(0).read_text().endswith("\nstep 1\n")


# --- start


def test_a_run_begins_with_what_will_run_and_nothing_of_an_earlier_one(folder, plan, record):
    folder.start(plan, ["old"])
    folder.rank_log(3).write_text("old")
    folder.rank_file(3).write_text("{}")
    folder.snapshot_file(0).write_bytes(b"old")
    folder.finish(record())
    (folder.path / "notes.txt").write_text("a user's own")
    folder.start(plan, ["new"])
    left = {str(path.relative_to(folder.path)) for path in folder.path.rglob("*") if path.is_file()}
    assert left == {"plan.json", "deepspeed.json", "training_args.json", "notes.txt"}
    assert read_json(folder.path / folder.PLAN)["command"] == ["new"]
    assert read_json(folder.path / folder.DEEPSPEED) == plan.deepspeed
    assert folder.read_plan() == plan


def test_ranks_that_wrote_nothing_are_left_out(folder, rank):
    write_json(folder.rank_file(1), rank(1))
    assert folder.read_ranks(4) == [rank(1)]


def test_a_file_with_the_name_of_a_huge_rank_is_read_in_no_time(folder, rank):
    for number in (1, 10**12):
        write_json(folder.rank_file(number), rank(number, attached={}))
    assert [each["rank"] for each in folder.read_attached_ranks()] == [1]


# --- whose a folder is


@pytest.mark.parametrize("name", ["logs/app.log", "notes.tmp", "rankings.json", "record.json", "plan.json", ".hidden"])
def test_any_file_that_is_not_memlabs_keeps_memlab_out(folder, name):
    path = folder.path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text('{"mine": 1}')
    for attempt in (folder.refuse_foreign_files, folder.claim, SweepFolder(folder.path).claim, folder.lock().__enter__):
        with pytest.raises(FolderError, match="not memlab's"):
            attempt()
    assert [each for each in folder.path.rglob("*") if each.is_file()] == [path]


def test_the_marker_is_the_first_file_and_is_written_once(folder, plan, record):
    folder.claim()
    (marker,) = folder.path.iterdir()
    written = marker.stat().st_mtime_ns
    folder.start(plan, [])
    folder.finish(record())
    folder.claim()
    assert marker.name == ".memlab" and marker.stat().st_mtime_ns == written


def test_a_disk_too_full_for_the_marker_is_told_with_the_file(folder, monkeypatch):
    def no_space(*arguments, **keywords):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("memlab.runs.marker.open_itself", no_space)
    with pytest.raises(FolderError, match=f"{folder}/.memlab: No space left on device; free some space"):
        folder.claim()


def test_a_record_or_a_plan_makes_a_folder_from_before_the_marker_memlabs(tmp_path, plan, record):
    for number, write in enumerate((lambda one: one.finish(record()), lambda one: one.start(plan, []))):
        old = RunFolder(tmp_path / "sweep" / str(number))
        old.path.mkdir(parents=True)
        write(old)
        old.refuse_foreign_files()
    SweepFolder(tmp_path / "sweep").claim()


def test_a_foreign_record_is_not_made_good_by_a_plan(folder, plan):
    folder.start(plan, [])
    (folder.path / folder.RECORD).write_text('{"mine": 1}')
    with pytest.raises(FolderError):
        folder.refuse_foreign_files()


def test_only_files_that_memlab_names_are_removed(folder, plan, record):
    """In a folder that is memlab's a person may keep files too."""
    own = ["rank0.json", "rank12.memory_snapshot.pickle", "logs/rank3.log", "logs/launcher.log", ".rank1.json.a_b1.tmp"]
    own += [f".rank1.{name}.ab12.tmp" for name in ("steps.jsonl", "trace.json", "operators.json")]
    own += [f".rank1.{name}.4242.tmp" for name in ("memory_snapshot.pickle", "out_of_memory.json")]
    own += [".hydra/.config.yaml.ab12.tmp", "logs/.rank0.log.ab12.tmp"]
    others = ["rankings.json", "rank.json", "rankx.pickle", "logs/app.log", "logs/rank.log", "notes.tmp", ".x.tmp"]
    for name in own + others:
        path = folder.path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("token hf_" + "a" * 30)
    folder.finish(record())
    folder.start(plan, [])
    left = {str(path.relative_to(folder.path)) for path in folder.path.rglob("*") if path.is_file()}
    assert left == {*others, "plan.json", "deepspeed.json", "training_args.json"}
    assert "hf_" in (folder.path / "logs" / "app.log").read_text()


# --- files beside files


def test_what_is_no_file_is_written_directly(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    reader = threading.Thread(target=lambda: seen.append((tmp_path / "pipe").read_bytes()))
    seen = []
    reader.start()
    write_output(tmp_path / "pipe", b"content")
    reader.join(10)
    assert seen == [b"content"] and (tmp_path / "pipe").is_fifo()


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "target").write_text("old")
    (tmp_path / "link").symlink_to("target")
    write_output(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "target").read_text() == "new"


@pytest.mark.parametrize(
    ("path", "words"),
    [(".", "name a file, not a folder"), ("no/x", "make its folder first"), ("f" * 300, "shorter name")],
)
def test_what_cannot_be_written_is_named(tmp_path, monkeypatch, path, words):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(WriteError, match=words) as error, writing(Path(path)) as file:
        file.write_bytes(b"content")
    assert str(error.value).startswith(f"Cannot write {path[:100]}")
    assert not list(tmp_path.iterdir())


def test_the_record_is_there_before_the_logs_are_redacted(folder, record, monkeypatch):
    """A log may be very long; whoever is killed while reading it has the record."""
    monkeypatch.setattr(RunFolder, "redact", lambda self: seen.append(self.read_record().status))
    seen = []
    folder.finish(record())
    assert seen == ["ok"]


def test_a_copy_of_a_prediction_has_the_traces_that_memlab_explain_reads(tmp_path):
    kept, point = RunFolder(tmp_path / "kept"), RunFolder(tmp_path / "point")
    for folder in (kept, point):
        folder.path.mkdir()
    (kept.path / "rank0.trace.json").write_text("{}")
    point.copy_ranks(kept)
    assert (point.path / "rank0.trace.json").read_text() == "{}"
