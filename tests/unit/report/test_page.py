"""The page as a file: self-contained, and whatever a run folder says stays data."""

import json
import re
from dataclasses import replace

import pytest
from folders import make_config, make_record, write
from sweeps import add_point, small_sweep

from memlab.analyse.collect import Skipped, collect
from memlab.analyse.quantities import quantities_of
from memlab.cli.main import main
from memlab.core.config import Hardware, Offload
from memlab.core.config_values import to_dict
from memlab.report.html_file import embedded_json
from memlab.report.page import page
from memlab.report.page.payload import payload
from memlab.report.page.points import LAST_BYTES, SharedValues, encoded, log_tails
from memlab.report.short_names import short_names, usual_options
from memlab.runs.folder import RunFolder

HOSTILE = '</script><script>window.hacked=1</script><img src=x onerror="window.hacked=2">\u2028'


@pytest.fixture
def runs(tmp_path):
    return collect([small_sweep(tmp_path / "sweep")]).runs


def data_of(text: str):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)[1])


def column(values, encoded_column) -> list:
    """A column of the page's data, from whichever form it has."""
    if isinstance(encoded_column, list):
        return encoded_column
    if "all" in encoded_column:
        return [encoded_column["all"]] * values["count"]
    return [encoded_column["of"][place] for place in encoded_column["at"]]


def sentences(values, heading: str) -> str:
    return " ".join(next(part["sentences"] for part in values["sections"] if part["title"] == heading))


def test_the_page_loads_nothing(runs):
    text = page(payload(runs, [], "sweep"))
    assert not re.search(r"""(src|href|action)\s*=\s*["']?(https?:)?//""", text)
    assert "@import" not in text and "url(" not in text
    assert "https://" not in re.sub(r'id="data">.*?</script>', "", text, flags=re.DOTALL)


def test_the_policy_names_the_one_script_and_the_one_style(runs):
    text = page(payload(runs, [], "sweep"))
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)[1]
    assert "default-src 'none'" in policy and "unsafe" not in policy
    assert policy.count("sha256-") == 2
    assert re.findall(r"<script(.*?)>", text) == [' type="application/json" id="data"', ""]


def test_nothing_a_folder_says_becomes_markup(tmp_path):
    choices = {"model": "small", "zero_stage": HOSTILE.rstrip("\u2028"), "allocator": "default"}
    path = add_point(tmp_path, 128, choices=choices, status="gpu_oom", reason=HOSTILE, environment={"torch": HOSTILE})
    (path / "logs").mkdir()
    (path / "logs" / "launcher.log").write_text(HOSTILE)
    found = collect([tmp_path]).runs
    assert found
    text = page(payload(found, [Skipped(str(tmp_path / HOSTILE.replace("/", "_")), HOSTILE)], HOSTILE))
    assert text.count("<script") == 2 and "<img" not in text
    assert "\u2028" not in text[text.index("<script") :]
    assert data_of(text)["title"] == HOSTILE


def test_the_data_has_no_letter_that_markup_begins_with():
    text = embedded_json({"a": "</script><!--<b>&amp;\u2028\u2029\ud800"})
    assert not set("<>&\u2028\u2029") & set(text)
    assert json.loads(text)["a"].startswith("</script><!--<b>&amp;\u2028\u2029")


def test_the_summary_says_what_was_run_and_learned(runs):
    values = payload(runs, [], "sweep")
    assert "15 points of 3 configurations" in sentences(values, "What was run")
    assert "14 ok, 1 gpu_oom" in sentences(values, "What was run")
    assert "batch 3 x 1,024 tokens" in sentences(values, "What fits")
    assert "Out of GPU memory: 1." in sentences(values, "What fits")
    assert "allocator from default to expandable, median of 6 pairs" in sentences(values, "What each axis did")
    assert re.search(r"-10\.\d %", sentences(values, "What each axis did"))
    assert "mode from measured to predicted, median of 4 pairs" in sentences(values, "What each axis did")


def test_the_page_begins_with_the_answer(runs):
    told = payload(runs, [], "sweep")["answer"]
    assert told.startswith("small on 2 x A100 is fastest with allocator=expandable measured, batch 3 x 1,024 tokens: ")
    assert "GiB reserved. 14 of 15 points ran." in told


def test_predicted_points_fit_and_their_speed_has_no_noise(tmp_path):
    add_point(tmp_path, 128, mode="predict", steps={"error": {"median": 0.1, "p90": 0.2}})
    values = payload(collect([tmp_path]).runs, [], "sweep")
    assert "1 of 1 points fit." in values["answer"] and "tokens/s \N{PLUS-MINUS SIGN} 20 %" in values["answer"]
    assert "The most tokens in one forward that were tried: 128" in sentences(values, "What fits")
    assert "Read with care" not in [part["title"] for part in values["sections"]]


def test_a_point_that_does_not_last_is_no_answer(tmp_path, runs):
    grows = max(runs, key=lambda run: run.summary.get("tokens_per_second", 0))
    grows.summary["verdict"] = "does_not_last"
    values = payload(runs, [], "sweep")
    assert "allocator=expandable measured, batch 3" not in values["answer"] and "13 of 15 points" in values["answer"]
    assert "13 ok, 1 does_not_last, 1 gpu_oom" in sentences(values, "What was run")
    board = {row[1]: row for row in values["tables"]["leaderboard"]["rows"]}
    assert board["allocator=expandable measured"][3] != "3 x 1,024"
    assert ["does not last", grows.run_id, "its memory grows with each step"] in values["tables"]["notes"]["rows"]
    assert column(values, values["points"]["status"]).count("does_not_last") == 1


def test_of_several_models_the_answer_is_how_many_ran(tmp_path, runs):
    add_point(tmp_path / "other", 128, choices={"model": "large", "zero_stage": "zero2", "allocator": "default"})
    told = payload([*runs, *collect([tmp_path / "other"]).runs], [], "sweep")["answer"]
    assert told == "With 2 combinations of model and GPUs, 15 of 16 points ran and 1 ran out of GPU memory."


def options(**choices: str) -> dict[str, str]:
    return {"model": "small", "zero_stage": "zero2", "allocator": "default", "offload": "none", **choices}


def many_configurations(folder, count: int):
    """``count`` models with two stages and two allocators each; one point in four is out of memory."""
    for number in range(count):
        for place, (stage, allocator) in enumerate(
            (s, a) for s in ("zero2", "zero3") for a in ("default", "expandable")
        ):
            choices = options(model=f"model{number}", zero_stage=stage, allocator=allocator)
            path = add_point(folder, 128 + number, allocator=allocator, choices=choices, run_id=f"{number}-{place}")
            file = path / RunFolder.RECORD
            record = json.loads(file.read_text())
            record["config"]["model"]["path"] = f"test/model{number}"
            record["config"]["zero_stage"]["stage"] = int(stage[-1])
            record |= {"status": "gpu_oom", "summary": {}} if place == 3 else {}
            file.write_text(json.dumps(record))
    return collect([folder]).runs


def test_the_summary_is_as_short_for_many_configurations(tmp_path):
    """What is repeated forty times is not read: a few sentences, and the tables have the rest."""
    values = payload(many_configurations(tmp_path, 15), [], "sweep")
    texts = [sentence for part in values["sections"] for sentence in part["sentences"]]
    assert len(values["tables"]["leaderboard"]["rows"]) == 60
    assert len(texts) <= 20 and sum(map(len, texts)) < 2500


def test_names_say_what_is_not_usual(tmp_path):
    made = [options(), options(offload="optimizer"), options(zero_stage="zero3", allocator="expandable"), options()]
    firsts = [add_point(tmp_path, 128 + at, choices=choices) for at, choices in enumerate(made)]
    runs = [collect([path]).runs[0] for path in firsts]
    runs[3].config = {**runs[3].config, "precision": {**runs[3].config["precision"], "dtype": "fp16"}}
    assert usual_options(runs) == {"offload": "none", "allocator": "default"}
    assert short_names(runs) == [
        "zero2 precision.dtype=bf16",
        "zero2 offload=optimizer",
        "zero3 allocator=expandable",
        "zero2 precision.dtype=fp16",
    ]


def test_commands_that_differ_in_their_words_have_the_names_of_their_scripts(runs):
    commands = ("torchrun --nproc_per_node 2 scripts/ddp.py --steps 4", "deepspeed scripts/engine.py --stage 2")
    firsts = [
        replace(runs[0], config={**runs[0].config, "training": {"loop": "command", "command": command}})
        for command in commands
    ]
    assert [name.split()[0] for name in short_names(firsts)] == ["ddp.py", "engine.py"]


def test_the_leaderboard_has_a_row_for_each_configuration(runs):
    board = payload(runs, [], "sweep")["tables"]["leaderboard"]
    heads = [column["name"] for column in board["columns"]]
    rows = [dict(zip(heads, row, strict=True)) for row in board["rows"]]
    assert [row["configuration"] for row in rows] == ["allocator=expandable measured", "measured", "predicted"]
    assert rows[0]["fastest at"] == "3 x 1,024" and rows[0]["most tokens tried in a forward that ran"] == 3072
    assert rows[1]["fewest tokens out of memory"] == 4096
    assert rows[0]["tokens/s"] == pytest.approx(max(run.summary.get("tokens_per_second", 0) for run in runs))


@pytest.mark.parametrize("values", [[1, 1, 1], [1, None, 2, 1] * 5, ["a", "b", "c"], [True, 1, 1.0, None] * 9, [None]])
def test_a_column_is_short_and_loses_nothing(values):
    found = column({"count": len(values)}, encoded(values))
    assert found == values and list(map(type, found)) == list(map(type, values))
    assert len(json.dumps(encoded(values))) <= len(json.dumps(values)) + 40


def test_the_columns_hold_every_figure_of_every_run(runs):
    values = payload(runs, [], "sweep")
    ids = values["points"]["id"]
    by_id = {run.run_id: run for run in runs}
    for key in ("peak_reserved_bytes", "tokens_per_second", "backward.peak_allocated_bytes"):
        found = dict(zip(ids, column(values, values["quantities"][key]["values"]), strict=True))
        known = {name: quantities_of(run).get(key) for name, run in by_id.items()}
        assert found == {name: figure and pytest.approx(figure.value) for name, figure in known.items()}


def test_what_varies_together_is_called_confounded(tmp_path):
    for tokens in (128, 256):
        add_point(tmp_path, tokens)
        path = add_point(tmp_path, tokens, allocator="expandable", run_id=f"other-{tokens}")
        file = path / RunFolder.RECORD
        record = json.loads(file.read_text())
        record["config"]["offload"] = to_dict(Offload(optimizer="cpu", param="none"))
        file.write_text(json.dumps(record))
    told = sentences(payload(collect([tmp_path]).runs, [], "sweep"), "Read with care")
    assert "offload never varies without allocator" in told


def test_skipped_and_incomplete_runs_are_told(tmp_path, runs):
    runs[0].incomplete = ["no values of rank 1 (of 2)"]
    values = payload(runs, [Skipped(runs[0].path + "-x", "no record.json")], "sweep")
    told = sentences(values, "Read with care")
    assert "1 incomplete, 1 skipped" in told
    rows = {kind: why for kind, _, why in values["tables"]["notes"]["rows"]}
    assert rows == {"incomplete": "no values of rank 1 (of 2)", "skipped": "no record.json"}


def test_paths_are_told_from_the_folder_on(tmp_path, runs):
    text = page(payload(runs, [Skipped(str(tmp_path / "sweep" / "bad"), "no record.json")], "sweep"))
    assert str(tmp_path) not in text
    values = data_of(text)
    assert column(values, values["points"]["folder"])[0] == "sweep"


def test_an_infinite_value_of_a_configuration_is_not_known():
    assert json.loads(embedded_json({"a": [1.5, float("inf")], "b": {"c": float("nan")}})) == {
        "a": [1.5, None],
        "b": {"c": None},
    }


def test_environments_are_compared_by_what_they_are(runs):
    """As in the diff of the command: one GPU seen and four GPUs seen are of one kind."""
    for place, run in enumerate(runs):
        run.environment = {**run.environment, "gpus": ["A100"] * (1 + place), "hostname_hash": str(place)}
    values = payload(runs, [], "sweep")
    (number,) = set(column(values, values["points"]["causes"]))
    assert values["shared"][number]["gpus"] == "A100" and "hostname_hash" not in values["shared"][number]


def test_equal_values_are_kept_once():
    shared = SharedValues()
    assert shared.columns([{"a": {"x": 1}, "c": 2}, {"a": {"x": 1}}]) == {"a": {"all": 0}, "c": [1, None]}
    assert shared.values == [{"x": 1}, 2]


def test_it_knows_which_points_can_be_explained(tmp_path):
    """Predictions, and runs that left a memory history."""
    paths = [add_point(tmp_path, tokens) for tokens in (128, 256)]
    add_point(tmp_path, 512, mode="predict")
    (paths[1] / "rank0.memory_snapshot.pickle").write_bytes(b"")
    values = payload(collect([tmp_path]).runs, [], "sweep")
    found = dict(zip(values["points"]["id"], column(values, values["points"]["explained"]), strict=True))
    assert sorted(found.values()) == [False, True, True]
    assert found[paths[1].name] and not found[paths[0].name]


def test_only_the_end_of_a_log_is_kept(tmp_path):
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "launcher.log").write_bytes(b"x" * 10_000_000 + b"\x00\xff\x1b[31mthe end\n")
    (logs / "rank0.log").symlink_to("/etc/hostname")
    (logs / "rank1.log").write_text("not among the first two")
    tails = log_tails(RunFolder(tmp_path))
    assert list(tails) == ["launcher.log"]
    assert tails["launcher.log"].endswith("the end")
    assert len(tails["launcher.log"]) <= LAST_BYTES and "\x1b" not in tails["launcher.log"]


def test_a_linked_folder_of_logs_is_not_read(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "launcher.log").write_text("private")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "logs").symlink_to(tmp_path / "elsewhere")
    assert log_tails(RunFolder(tmp_path / "run")) == {}


def test_a_damaged_deepspeed_json_costs_only_itself(tmp_path):
    path = add_point(tmp_path, 128)
    (path / RunFolder.DEEPSPEED).write_text("{")
    values = payload(collect([tmp_path]).runs, [], "sweep")
    assert values["deepspeed"] == {} and values["quantities"]


def test_five_hundred_points_stay_small(tmp_path):
    for number in range(500):
        add_point(tmp_path, 128 + number)
    text = page(payload(collect([tmp_path]).runs, [], "sweep"))
    assert len(text) < 600_000


def test_logs_of_many_runs_are_those_that_did_not_end_as_ok(tmp_path, monkeypatch):
    monkeypatch.setattr("memlab.report.page.points.LOGGED", 5)
    for number in range(9):
        path = add_point(tmp_path, 128 + number, status="ok" if number < 6 else "gpu_oom")
        (path / "logs").mkdir()
        (path / "logs" / "launcher.log").write_text(f"end of {number}")
    values = payload(collect([tmp_path]).runs, [], "sweep")
    statuses = column(values, values["points"]["status"])
    assert len(values["logs"]) == 5
    assert all(place in values["logs"] for place, status in enumerate(statuses) if status != "ok")


def test_folders_that_cannot_be_read_cost_a_line_each(tmp_path, capsys):
    small_sweep(tmp_path / "sweep")
    nan = (
        (add_point(tmp_path / "sweep", 64) / RunFolder.RECORD).read_text().replace('"max": ', '"max": NaN, "was": ', 1)
    )
    infinite = nan.replace("NaN", "1e999")
    bad = {
        "infinite": infinite,
        "half-written": '{"schema_version": 1,',
        "foreign": "[]",
        "later": '{"schema_version": 99}',
        "nan": nan,
    }
    for name, text in bad.items():
        (tmp_path / "sweep" / name).mkdir()
        (tmp_path / "sweep" / name / RunFolder.RECORD).write_text(text)
    (tmp_path / "sweep" / "unfinished").mkdir()
    (tmp_path / "sweep" / "unfinished" / RunFolder.PLAN).write_text("{}")
    with pytest.raises(SystemExit) as end:
        main(["report", str(tmp_path / "sweep"), "-o", str(tmp_path / "page.html")])
    assert end.value.code == 0
    values = data_of((tmp_path / "page.html").read_text())
    skipped = [place for kind, place, _ in values["tables"]["notes"]["rows"] if kind == "skipped"]
    assert "6 skipped" in sentences(values, "Read with care")
    assert all(f"sweep/{name}" in skipped for name in ("infinite", "half-written", "foreign", "later", "nan"))


def test_the_command_writes_one_file(tmp_path, capsys):
    small_sweep(tmp_path / "sweep")
    with pytest.raises(SystemExit) as end:
        main(["report", str(tmp_path / "sweep"), "-o", str(tmp_path / "out" / "page.html")])
    assert end.value.code == 0
    assert "15 points" in capsys.readouterr().out
    assert "<title>sweep - memlab</title>" in (tmp_path / "out" / "page.html").read_text()


def test_a_predicted_page_does_not_say_that_points_ran(tmp_path):
    runs = [replace(run, source="predicted") for run in collect([small_sweep(tmp_path)]).runs]
    heads = [column["name"] for column in payload(runs, [], "predicted")["tables"]["leaderboard"]["columns"]]
    assert "most tokens tried in a forward that fit" in heads and not any(" ran" in head for head in heads)


def test_a_record_without_a_price_has_the_list_price_which_the_page_names(tmp_path):
    add_point(tmp_path, 512)
    h200 = make_config(512, hardware=Hardware(gpu="NVIDIA H200", gpus=2, memory_gib=140.0))
    write(tmp_path, make_record(h200, {"model": "small", "zero_stage": "zero2", "allocator": "default"}))
    values = payload(collect([tmp_path]).runs, [], "sweep")
    assert all(row[5] for row in values["tables"]["leaderboard"]["rows"])
    price = "The price of 1 of 2 points is the list price of NVIDIA H200 (Nebius, by 2026-11-21): their records have"
    assert price in sentences(values, "Read with care")


def test_bounds_of_speeds_rank_nothing_and_are_written_as_such(tmp_path):
    """By the bounds, the smaller batch of one configuration would be the fastest; memory ranks instead."""
    steps = {"basis": "lower bound", "basis_reason": "no calibration for A100"}
    for allocator, micro in (("default", 1), ("expandable", 2)):
        add_point(tmp_path, 512, micro, allocator, mode="predict", steps=steps)
    values = payload(collect([tmp_path]).runs, [], "sweep")
    assert values["answer"].endswith("2 of 2 points fit; speed: not known (no calibration for A100).")
    board = values["tables"]["leaderboard"]
    assert [row[2] for row in board["rows"]] == [None, None] and [row[7] for row in board["rows"]] == [1024, 512]
    assert [row[3] for row in board["rows"]] == ["2 x 512", "1 x 512"] and board["columns"][3]["name"] == "largest at"
    assert all(row[4] and row[9] == "speed not known" for row in board["rows"])
    care = "The speed of 2 of 2 points: not known (no calibration for A100)."
    assert care in sentences(values, "Read with care")
    assert column(values, values["points"]["bound"]) == ["no calibration for A100"] * 2
    assert values["quantities"]["step_seconds"]["bound"] == "at least"
    assert values["quantities"]["tokens_per_second"]["bound"] == "at most"
    assert {row[2] for row in values["tables"]["effects"]["rows"]} <= {"peak allocated", "peak reserved"}
