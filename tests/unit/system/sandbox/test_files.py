"""Files that a program in the sandbox writes and deletes: the program sees its changes, the machine does not."""

import contextlib
import os
import random
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from sandboxed import contents, run, run_python

from memlab.system.sandbox import ALLOWED, UNPROTECTED, WITHOUT_WALL, Sandbox, SandboxError


def test_what_a_script_deletes_and_writes_stays_in_the_sandbox_and_is_listed(sandbox, project):
    before = contents(project)
    seen = run_python(
        sandbox,
        """
        import os, shutil, subprocess
        shutil.rmtree("out")
        os.system("rm -rf old")
        subprocess.run(["rm", "-rf", "older"], check=True)
        os.makedirs("out/checkpoint-2")
        with open("out/checkpoint-2/model.bin", "wb") as file:
            file.truncate(5_000_000_000)
        with open("log.txt", "a") as log:
            log.write("second")
        os.rename("log.txt", "log.old")
        print(sorted(os.listdir(".")), os.listdir("latest"), os.path.getsize("latest/checkpoint-2/model.bin"))
        print(open("log.old").read())
        """,
        project,
    )
    assert seen.splitlines() == ["['latest', 'log.old', 'out'] ['checkpoint-2'] 5000000000", "first", "second"]
    assert contents(project) == before
    effects = sandbox.effects()
    assert {tuple(each.values()) for each in effects["written"]} == {
        (str(project / "out" / "checkpoint-2"), 1, 5_000_000_000),
        (str(project), 1, len("first\nsecond")),
    }
    assert {tuple(each.values()) for each in effects["deleted"]} == {
        (str(project / "out" / "checkpoint-1"), 1, 1000),
        (str(project / "out"), 1, 2),
        (str(project / "old"), 2, 1002),
        (str(project / "older"), 2, 1002),
        (str(project), 1, 6),
    }


WITHOUT_PRIVILEGE = ["setpriv", "--inh-caps=-all", "--bounding-set=-dac_override,-dac_read_search,-fowner"]
"""Words before those of a program of root, for which the permissions of files then hold."""


def test_what_its_owner_may_change_in_spite_of_permissions_stays_in_the_sandbox(sandbox, project):
    def state() -> dict[Path, tuple[int, int]]:
        return {each: (each.lstat().st_mode, each.lstat().st_mtime_ns) for each in project.rglob("*")}

    (project / "out" / "config.json").chmod(0o444)
    for name in ("old", "older"):
        (project / name).chmod(0o555)
    before, texts = state(), contents(project)
    program = """
    import os
    os.chmod("out/config.json", 0o644)
    open("out/config.json", "a").write("1")
    open("old/config.json", "a").write("2")
    os.chmod("older", 0o755)
    open("older/new", "w").write("3")
    os.utime("latest", (0, 0), follow_symlinks=False)
    print(*(open(name).read() for name in ("out/config.json", "old/config.json", "older/new")), os.listdir("older"))
    """
    words = [*(WITHOUT_PRIVILEGE if os.geteuid() == 0 else ()), sys.executable, "-c", textwrap.dedent(program)]
    done = run(sandbox, words, project)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("{}1 {}2 3 ") and all(name in done.stdout for name in ("new", "checkpoint-1"))
    assert state() == before and contents(project) == texts
    assert {tuple(each.values()) for each in sandbox.effects()["written"]} == {
        (str(project / "out"), 1, 3),
        (str(project / "old"), 1, 3),
        (str(project / "older"), 1, 1),
    }


def test_the_kept_folder_is_really_written(sandbox, project, tmp_path):
    run_python(sandbox, f"open({str(tmp_path / 'run' / 'rank0.json')!r}, 'w').write('kept')", project)
    assert (tmp_path / "run" / "rank0.json").read_text() == "kept"
    assert sandbox.effects()["written"] == []


OPERATIONS = """
import os, random, shutil, sys
names = random.Random(int(sys.argv[1]))
def path():
    return "/".join(names.choice("abc") for _ in range(names.randint(1, 3)))
done = []
for _ in range(150):
    kind = names.choice("write append mkdir unlink rmtree rename symlink link chmod list in".split())
    first, second = path(), path()
    try:
        if kind in ("write", "append"):
            with open(first, kind[0]) as file:
                file.write(second)
        elif kind == "list":
            done.append(sorted((each.name, each.is_dir(), each.is_symlink()) for each in os.scandir(first)))
        elif kind == "in":
            at = os.open(first, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.mkdir("d", dir_fd=at)
                os.rename("d", "e", src_dir_fd=at, dst_dir_fd=at)
            finally:
                os.close(at)
        elif kind == "rmtree":
            shutil.rmtree(first)
        elif kind in ("rename", "link"):
            if not os.path.isdir(first) or os.path.islink(first):  # folders of the machine are copied, not renamed
                getattr(os, kind)(first, second)
        elif kind == "symlink":
            os.symlink(second, first)
        elif kind == "chmod":
            os.chmod(first, 0o755)
        else:
            getattr(os, kind)(first)
        done.append(kind)
    except OSError as error:
        done.append((kind, error.errno))
    done.append((os.path.exists(first), os.path.realpath(second)[len(os.getcwd()):]))
tree = sorted((folder, sorted(folders), sorted(files)) for folder, folders, files in os.walk("."))
paths = [f"{folder}/{file}" for folder, _, files in tree for file in files]
text = {path: open(path).read() for path in paths if os.path.isfile(path)}
print(done, tree, text)
"""


@pytest.mark.parametrize("seed", range(4))
def test_a_program_sees_its_own_changes_as_if_they_were_real(sandbox, tmp_path, seed):
    def start(name: str) -> Path:
        places, folder = random.Random(seed), tmp_path / name
        folder.mkdir()
        for _ in range(8):
            path = folder.joinpath(*(places.choice("abc") for _ in range(places.randint(1, 3))))
            with contextlib.suppress(OSError):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(str(places.random()))
        return folder

    words = [sys.executable, "-c", OPERATIONS, str(seed)]
    real, folder = start("real"), start("view")
    before = contents(folder)
    expected = subprocess.run(words, cwd=real, capture_output=True, text=True, check=True).stdout
    done = run(sandbox, words, folder)
    assert done.stdout == expected, done.stderr
    assert contents(folder) == before


def test_folders_that_the_program_made_unreadable_are_listed_and_removed(sandbox, project):
    run(sandbox, ["sh", "-c", "mkdir -p a/b; echo 1 > a/b/c; chmod 0 a/b; chmod 0500 a"], project)
    assert sandbox.effects()["written"] == [{"folder": str(project / "a"), "files": 1, "bytes": 2}]


def test_a_machine_without_shared_memory_has_a_scratch_folder(tmp_path, variables, monkeypatch):
    places = (tmp_path / "scratch", Path("/nowhere/shm"))
    places[0].mkdir()
    monkeypatch.setattr("memlab.system.sandbox.SCRATCH_PLACES", places)
    monkeypatch.setattr(Sandbox, "_works", lambda self, place: False)
    with Sandbox(tmp_path, {**variables, WITHOUT_WALL: ALLOWED}) as sandbox:
        assert sandbox.protection == UNPROTECTED and list(places[0].iterdir())
    monkeypatch.setattr("memlab.system.sandbox.SCRATCH_PLACES", places[1:])
    with pytest.raises(SandboxError, match="a sandbox needs a scratch folder"), Sandbox(tmp_path, variables):
        pass


def test_what_a_script_forbids_to_read_can_be_read_and_no_file_stays_open(sandbox, project):
    before = os.listdir("/proc/self/fd")
    run_python(
        sandbox, "import os\nos.mkdir('hidden')\nopen('hidden/file', 'w').close()\nos.chmod('hidden', 0)", project
    )
    written = {str(each["folder"]) for each in sandbox.effects()["written"]}
    assert any(folder.endswith("hidden") for folder in written), written
    assert os.listdir("/proc/self/fd") == before
