"""Run folders as somebody careless or hostile might hand them over: whole ones with one thing in them changed.

Every mutation follows from its seed alone.
"""

import json
import os
import pickle
import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from folders import make_config, make_record
from recordings import keep, marks, snapshot

from memlab.core.config import Hardware
from memlab.core.record import Record
from memlab.runs.folder import RunFolder

TEXTS = (
    *("", "x", "a\nb", "%s %d {0}", "../../etc/passwd", "x" * 100_000, "ok", "measured", "fits", "1e400", "none"),
    *("\x1b]52;c;aGFja2Vk\x07", "\x1b[2J\x1b[H", "\x9b2J", "\r\x08", "\u202egnp.exe", "\u2028", "\x00", "\ud800"),
    *("[/foo]", "[bold", "[link=file:///etc/passwd]x[/link]", "\\[", ":warning:", "$x_{$", "|", "`"),
    *("<script>alert(1)</script>", "</script>", "<!--", "=cmd|' /C calc'!A0", "+1", "@SUM(A1)", "${oc.env:HOME}"),
)

NUMBERS = (
    *(0, -1, 1, 7, 10**9, 2**63 - 1, 2**63, -(2**63), 10**400, -(10**400)),
    *(0.0, -0.0, 0.5, -1.5, 5e-324, 1e-300, 1e29, 1e308, -1e308, float("nan"), float("inf")),
)


def nested(levels: int) -> Any:
    value: Any = 1
    for level in range(levels):
        value = {"a": value} if level % 2 else [value]
    return value


OTHERS: tuple[Callable[[], Any], ...] = (
    *(lambda: None, lambda: True, lambda: False, list, dict, lambda: [None], lambda: [[]], lambda: {"": {}}),
    *(lambda: nested(20), lambda: nested(31), lambda: nested(600), lambda: [1] * 10_000, lambda: {"max": 1}),
    *(lambda: {"max": 1, "mean": 1, "min": 1}, lambda: {"max": "x", "mean": None, "min": []}),
)


def good() -> list[Record]:
    """Runs of a sweep, one of them predicted and one out of memory."""
    runs = [make_record(make_config(tokens)) for tokens in (256, 512, 1024)]
    return [*runs, make_record(make_config(2048), status="gpu_oom"), predicted()]


def predicted(tokens: int = 512) -> Record:
    """A prediction with all that only a prediction has."""
    config = make_config(tokens, stage=3, mode="predict", hardware=Hardware(gpu="A100", gpus=1, memory_gib=40.0))
    curve = {"event": [0, 1, 2], "allocated_bytes": [1, 3, 2], "reserved_bytes": [4, 4, 4], "phases": [[0, "forward"]]}
    record = make_record(
        config,
        peak_reserved_range_bytes=[1 << 30, 2 << 30],
        cold_peak_reserved_bytes=3 << 30,
        fit_probability=0.4,
        verdict="edge",
        breakdown={"phases": {"forward": {"weights": 5, "activations": 9}}, "peak_phase": "forward", "largest": []},
        curve=curve,
        work={"forward": {"flops": 10**15, "kernels": 7}},
    )
    record.source = "predicted"
    record.summary |= {"verdict": "edge", "fit_probability": 0.4, "fit_probability_from": 127}
    record.summary |= {"step_seconds_lower_bound": 0.1, "step_seconds_basis": "calibration"}
    record.steps |= {"error": {"median": 0.03, "p90": 0.1}, "basis_reason": "few records", "doubts": ["it varies"]}
    record.timing["step_s_range"] = [0.4, None]
    return record


def put(folder: Path, seed: int) -> str:
    """Write the mutation of this seed as the record of ``folder``; what it is, for the message of a failed test."""
    choice = random.Random(seed)
    folder.mkdir(parents=True)
    record = choice.choice([make_record(make_config(512, micro=2)), predicted(1024)]).to_json()
    file = folder / RunFolder.RECORD
    if choice.random() < 0.1:
        return _put_a_file(file, json.dumps(record).encode(), choice)
    told = [_change(record, choice) for _ in range(choice.choice((1, 1, 1, 2, 5)))]
    file.write_text(json.dumps(record))
    return f"seed {seed}: {', '.join(told)}"


COMMAND = Path(__file__).parents[1] / "data" / "predicted_command"


def put_command(folder: Path, seed: int) -> str:
    """Write the mutation of this seed as one of the files of a command, predicted or with a recorded history."""
    choice = random.Random(seed)
    folder.mkdir(parents=True)
    if choice.random() < 0.6:
        shutil.copytree(COMMAND, folder, dirs_exist_ok=True)
    else:
        record = make_record()
        record.command = {"words": ["python", "train.py"], "exit_code": 0}
        RunFolder(folder).finish(record)
        keep(RunFolder(folder), 0, snapshot(), marks())
    file = choice.choice(sorted(path for path in folder.iterdir() if path.is_file()))
    content = file.read_bytes()
    if choice.random() < 0.1:
        file.unlink()
        return f"seed {seed}: {file.name}: {_put_a_file(file, content, choice)}"
    if file.suffix == ".jsonl":
        values: Any = [json.loads(line) for line in content.splitlines()]
    else:
        values = pickle.loads(content) if file.suffix == ".pickle" else json.loads(content)
    told = [_change(values, choice) for _ in range(choice.choice((1, 1, 1, 2, 5)))]
    if file.suffix == ".pickle":
        with suppress(RecursionError):  # too deep to be written
            keep(RunFolder(folder), 0, values, marks())
    else:
        file.write_text("\n".join(map(json.dumps, values)) if file.suffix == ".jsonl" else json.dumps(values))
    return f"seed {seed}: {file.name}: {', '.join(told)}"


def _put_a_file(file: Path, content: bytes, choice: random.Random) -> str:
    """A file that no record is in, or not quite one."""
    at = choice.randrange(len(content))
    kinds: dict[str, Callable[[], Any]] = {
        "cut": lambda: file.write_bytes(content[:at]),
        "a byte": lambda: file.write_bytes(content[:at] + bytes([choice.randrange(256)]) + content[at + 1 :]),
        "empty": file.touch,
        "not text": lambda: file.write_bytes(b"\xff\xfe\x00\x01"),
        "a number": lambda: file.write_text("9" * 5000),
        "deep": lambda: file.write_text("[" * 100_000),
        "large": lambda: os.truncate(_touched(file), 300 * 2**20),
        "pipe": lambda: os.mkfifo(file),
        "link": lambda: file.symlink_to("/etc/passwd"),
        "folder": file.mkdir,
        "twice": lambda: file.write_bytes(content + content),
    }
    kind = choice.choice(sorted(kinds))
    kinds[kind]()
    return kind


def _touched(file: Path) -> Path:
    file.touch()
    return file


def _change(record: dict[str, Any], choice: random.Random) -> str:
    """One change in place, somewhere; where and what."""
    path, holder, key = _place(record, choice)
    kind = choice.choice(("value", "value", "value", "value", "delete", "add", "rename"))
    where = f"{kind} {path}"
    if kind == "delete":
        del holder[key]
        return where
    if kind in ("add", "rename") and isinstance(holder, dict):
        name = choice.choice(TEXTS)
        holder[name] = holder.pop(key) if kind == "rename" else _value(holder[key], choice)
        return f"{where} {name[:20]!r}"
    holder[key] = _value(holder[key], choice)
    return where if isinstance(holder[key], list | dict) else f"{where} = {str(holder[key])[:40]!r}"


def _value(old: Any, choice: random.Random) -> Any:
    """Half of the time of the same kind, so that it may well pass for what it replaces."""
    kind = choice.choice(("text", "number", "other"))
    if choice.random() < 0.5:
        kind = "text" if isinstance(old, str) else "other" if isinstance(old, dict | list | None) else "number"
    return {
        "text": lambda: choice.choice(TEXTS),
        "number": lambda: choice.choice(NUMBERS),
        "other": lambda: choice.choice(OTHERS)(),
    }[kind]()


def _place(values: Any, choice: random.Random) -> tuple[str, Any, Any]:
    """A value somewhere inside: its path, what holds it, and under which key. Each key of a level is as likely."""
    key = choice.choice(list(values) if isinstance(values, dict) else range(len(values)))
    if isinstance(values[key], dict | list) and values[key] and choice.random() < 0.8:
        path, holder, inner = _place(values[key], choice)
        return f"{key}.{path}", holder, inner
    return str(key), values, key
