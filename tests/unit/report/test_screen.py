"""The answer of a run: whole screens of every kind, each at most 16 lines of 100 columns."""

import io
from dataclasses import replace
from pathlib import Path

import pytest

from memlab.core.record import HOST, LIVE_TENSORS
from memlab.report.details_text import show_answer
from memlab.report.screen import LINES, WIDTH, screen
from memlab.report.text import console
from memlab.runs.folder import RunFolder

ROOT = Path(__file__).parents[3]
GIB = 2**30

PHASES = {
    "load": (4.60, 4.61),
    "first_forward": (7.34, 7.45),
    "first_backward": (10.27, 10.94),
    "first_optimizer_step": (18.43, 18.45),
    "forward": (10.42, 18.45),
    "backward": (19.48, 20.25),
    "optimizer_step": (18.44, 20.25),
}
"""Phase -> GiB allocated, GiB reserved."""

TABLE = """
                        allocated   reserved    GiB
load                         4.60       4.61
first step                  18.43      18.45
forward                     10.42      18.45
backward                    19.48      20.25    peak
optimizer step              18.44      20.25
"""

CALIBRATED = {"basis": "calibrated", "error": {"median": 0.08, "p90": 0.23}, "basis_reason": None}
BOUND = {"basis": "lower bound", "error": None, "basis_reason": "no calibration for RTX 4090"}

EPOCH = {
    "purpose": "training",
    "read_by": 0,
    "batches": 2500,
    "batches_read": 2500,
    "seconds": 3.2,
    "failure": None,
    "is_stream": False,
    "is_run_whole": False,
    "batches_run_first": 4,
    "batches_per_step": 1,
    "dearest": [
        {"rank": 0, "epoch": 1, "batch": 14, "step": 14, "run_as_step": 3, "shapes": {"attention_mask": [4, 1024]}}
    ],
}


def phases(**changes) -> dict:
    sizes = {**PHASES, **changes}
    names = ("peak_allocated_bytes", "peak_reserved_bytes")
    return {
        phase: {**{name: int(size * GIB) for name, size in zip(names, both, strict=True)}, "end_allocated_bytes": 0}
        for phase, both in sizes.items()
    }


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return RunFolder("outputs/sft")


@pytest.fixture
def run(config, record, rank):
    """``run(gpus=4, status="gpu_oom", command={...})``: a prediction of a command on GPUs that take 21 GiB."""

    def build(gpu="NVIDIA H200", gpus=1, gib=139.8, usd=None, ranks=None, command=None, **changes):
        machine = {"device": "cuda", "gpu": gpu, "gpus": gpus, "memory_gib": gib, "usd_per_gpu_hour": usd}
        found = config({f"hardware.{key}": value for key, value in machine.items()})
        figures = {
            "device_name": gpu,
            "device_total_bytes": int(gib * GIB),
            "peak_allocated_bytes": int(19.48 * GIB),
            "peak_reserved_bytes": int(20.25 * GIB),
            "device_used_bytes": int(21 * GIB),
            "memory_source": "predicted",
            "phases": phases(),
            "attached": {"peak": {"step": 4, "phase": "backward", "where": "src/train.py:31", "bytes": 1}},
        }
        each = [rank(number, **{**figures, **of_rank}) for number, of_rank in enumerate(ranks or [{}] * gpus)]
        told = {"words": ["python", "train.py"], "exit_code": 0, "steps": None, "disagreements": [], **(command or {})}
        values = {"source": "predicted", "ranks": each, "command": told, "summary": {}, "steps": {}, **changes}
        return record(config=found, **values)

    return build


def shown(record, folder, **options) -> str:
    lines = screen(record, folder, **options)
    assert len(lines) <= LINES and max(map(len, lines)) <= WIDTH
    return "\n".join(lines)


def fits(step: float, **changes) -> dict:
    return {"verdict": "fits", "step_seconds": step, "step_seconds_max": 2 * step, **changes}


def test_a_run_that_fits_on_a_calibrated_gpu(run, folder):
    record = run(usd=3.5, command={"epochs": [EPOCH]}, summary=fits(0.35), steps=CALIBRATED)
    assert shown(record, folder) == (
        "Fits on 1 x H200: 21.0 of 139.8 GiB (reserved 20.2); the peak is in backward, step 4, train.py:31.\n"
        "0.350 s a step ± 23 %; one epoch, 2,500 steps: 11 to 18 min, $0.66 to $1.05 (at $3.50 an hour).\n"
        f"{TABLE}\n"
        "All 2,500 batches were looked at; the largest, batch 14 (4 x 1,024 tokens), was run.\n"
        "outputs/sft     memlab explain outputs/sft   where every byte is"
    )


def test_without_a_calibration_time_and_money_are_bounds(run, folder):
    summary = fits(0.4, step_seconds_max=None)
    record = run("RTX 4090", gib=23.5, usd=0.5, command={"epochs": [EPOCH]}, summary=summary, steps=BOUND)
    assert shown(record, folder).splitlines()[:2] == [
        "Fits on 1 x RTX 4090: 21.0 of 23.5 GiB (reserved 20.2); the peak is in backward, step 4,",
        "train.py:31.",
    ]
    first = "At least 0.400 s a step (no calibration for RTX 4090); one epoch, 2,500 steps: "
    assert f"{first}at least 16 min 40 s\nand $0.14." in shown(record, folder)


GROWTH = {
    "rank": 0,
    "bytes_per_step": GIB // 4,
    "steps_seen": 30,
    "last_step": 32,
    "kept_by": {"name": "losses", "where": "train.py:13", "bound": None, "keeps_graph": True, "is_scalar": False},
    "agreed": True,
    "end_step": 400,
    "out_of_memory_step": 290,
    "need_bytes": 99 * GIB,
}


def test_a_run_whose_memory_grows(run, folder):
    summary = fits(0.23, verdict="does_not_last", step_seconds_max=None)
    record = run("A100-SXM4-80GB", gib=79.2, command={"growth": GROWTH}, summary=summary, steps=BOUND)
    assert shown(record, folder).splitlines()[:5] == [
        "Does not last on 1 x A100 80GB: 21.0 of 79.2 GiB now; out of memory near step 290 of 400.",
        "At least 0.230 s a step (no calibration for RTX 4090); 400 steps: at least 1 min 32 s; no price is",
        "known (hardware.usd_per_gpu_hour=...).",
        "0.25 GiB more a step: train.py:13 keeps tensors of each step in `losses`; keep a copy on the CPU,",
        ".detach().cpu(), or of the needed part alone, .detach().clone().",
    ]


CHANGE = {
    "change": "--batch 6 --accumulate 4",
    "price": "twice the forward passes of half the size",
    "saved_bytes": 12 * GIB,
    "needs": {"verdict": "fits", "used": int(34.3 * GIB), "free": GIB, "host": GIB},
    "reason": None,
}


def test_a_run_that_does_not_fit_and_the_change_that_would(run, folder):
    oom = {"phase": "forward", "step": 2, "where": "gpt.py:42", "requested_bytes": GIB}
    record = run(
        "A100-SXM4-40GB",
        2,
        39.5,
        ranks=[{"status": "gpu_oom", "oom": oom, "phases": {}}] * 2,
        command={"changes": {"base": {}, "tried": [CHANGE], "not_tried": []}},
        status="gpu_oom",
        summary={"verdict": "does_not_fit", "needed_bytes": int(46.6 * GIB)},
    )
    assert shown(record, folder) == (
        "Does not fit on 2 x A100 40GB: 46.6 of 39.5 GiB; out of memory in forward, step 2, gpt.py:42.\n"
        "--batch 6 --accumulate 4 would fit (34.3 GiB; twice the forward passes of half the size).\n"
        "\n"
        "Out of memory at 21.0 GiB; on a larger GPU, the run takes 46.6 GiB.\n"
        "outputs/sft     memlab explain outputs/sft   where every byte is"
    )


def test_a_measured_out_of_memory_says_on_which_ranks_and_what_was_requested(run, folder):
    oom = {"phase": "backward", "step": 1, "requested_bytes": 2 * GIB}
    failed = {"status": "gpu_oom", "oom": oom, "device_used_bytes": 139 * GIB}
    record = run(gpus=4, ranks=[failed, failed, {}, failed], source="measured", status="gpu_oom")
    assert " ".join(shown(record, folder).split()).startswith(
        "Does not fit on 4 x H200: 139.0 of 139.8 GiB taken (reserved 20.2), 2.00 GiB more requested; out of memory on "
        "ranks 0-1, 3 in backward, step 1. allocated"
    )


def test_what_depends_on_side_streams_is_at_the_edge(run, folder):
    odds = {"fit_probability": 0.4, "fit_probability_same_gpu": 127, "fit_probability_same_kind": 51}
    record = run(gpus=4, gib=21.5, summary=fits(0.4, verdict="edge", **odds), steps=CALIBRATED)
    text = " ".join(shown(record, folder).split())
    assert text.startswith("At the edge on 4 x H200: 21.0 of 21.5 GiB (reserved 20.2); the peak is in backward")
    assert "in time; 40 % sure to fit (51 similar configurations were measured)." in text


def test_a_prediction_that_cannot_be_made_says_why_and_nothing_else(run, folder):
    reason = "train.py:58 reads the value of a tensor, and its way could not be followed (train.py:60)"
    assert shown(run(status="failed", reason=reason), folder) == (
        f"No answer: {reason}.\n\noutputs/sft     outputs/sft/command.log   what the script printed"
    )


def test_gpus_that_stay_idle_are_paid_and_a_price_that_is_not_known_is_named(run, folder):
    idle = {"epochs": [EPOCH], "disagreements": [{"key": "hardware.gpus", "composed": 4, "found": 2}]}
    text = " ".join(shown(run(gpus=2, usd=3.5, command=idle, summary=fits(0.35), steps=CALIBRATED), folder).split())
    assert "at $14.00 an hour for 4 GPUs; Nebius rents 8, for $28.00" in text, text
    assert "The command uses 2 of the 4 GPUs; all 4 are paid." in text
    text = " ".join(shown(run(gpus=2, command=idle, summary=fits(0.35), steps=CALIBRATED), folder).split())
    assert "11 to 18 min; no price is known (hardware.usd_per_gpu_hour=...)." in text


def test_ranks_that_share_a_gpu_are_named(run, folder):
    record = run(ranks=[{"device": "cuda:0"}] * 2, gpus=2, summary={"verdict": "fits"})
    text = " ".join(shown(record, folder).split())
    assert text.startswith("Fits on 1 x H200") and "The step time is not known." in text
    assert "Ranks 0-1 all use cuda:0, and share its memory: call torch.cuda.set_device(" in text


@pytest.mark.parametrize(("visible", "gpus"), [(["0,1", "0,1"], 1), ([None, None], 1), (["0", "1"], 2)])
def test_measured_ranks_share_a_gpu_unless_each_sees_one_of_its_own(run, folder, visible, gpus):
    seen = [{} if each is None else {"CUDA_VISIBLE_DEVICES": each} for each in visible]
    ranks = [{"device": "cuda:0", "attached": {"local_world_size": 2, "environment": each}} for each in seen]
    record = run(ranks=ranks, gpus=2, source="measured", summary={"step_seconds": 0.5})
    text = " ".join(shown(record, folder).split())
    assert text.startswith(f"Fits on {gpus} x H200") and ("share its memory" in text) == (gpus == 1)


def test_a_script_that_fails_before_its_settings_are_known_has_all_its_figures_shown(run, folder):
    failed = run(status="failed", reason="train.py:11: AttributeError: vocabsize", unknown_config=["allocator"])
    failed.config.allocator.conf = "???"  # as a record is read
    out = console(io.StringIO())
    show_answer(failed, folder, out, everything=True)
    assert out.file.getvalue().startswith("No answer: train.py:11: AttributeError: vocabsize.")


@pytest.mark.parametrize(
    ("status", "reason", "first", "then"),
    [
        ("gpu_oom", "implied by other-run", "Does not fit on 2 x H200: implied by other-run.", ""),
        ("unsupported", "no; instead: yes", "No answer: no; instead: yes.", ""),
        ("failed", "rank 0: KeyError\nmore", "No answer: rank 0: KeyError.", ""),
        ("interrupted", None, "No answer: no reason given.", "Run the same command again."),
        ("timeout", "late", "No answer: late.", "If no rank hung, raise the time limit."),
        ("infra", "bad\x1b port.", "No answer: bad\N{REPLACEMENT CHARACTER} port.", "Run the same command again."),
        (
            "host_oom",
            "k",
            "Does not fit on 2 x H200: out of host memory: k.",
            "Offload less, or take a machine with more memory.",
        ),
    ],
)
def test_a_run_without_figures_says_why_and_what_to_do(run, folder, status, reason, first, then):
    record = run(gpus=2, status=status, reason=reason, source="measured")
    record.ranks = []
    assert shown(record, folder).splitlines()[:2] == [first, then]


def test_a_measured_run_names_the_fullest_and_the_emptiest_of_its_ranks(run, folder):
    used = [{"device_used_bytes": int(size * GIB)} for size in (46.5, 30.2, 46.4, 40)]
    record = run(gpus=4, usd=3.5, ranks=used, source="measured", command={"epochs": [EPOCH]})
    record.summary = {"step_seconds": 0.348, "tokens_per_second": 9889, "usd_per_million_tokens": 0.39}
    for rank in record.ranks:
        rank["step_seconds"] = [0.348] * record.config.measure.steps
    assert shown(record, folder).splitlines()[:3] == [
        "Fits on 4 x H200: 46.5 of 139.8 GiB on rank 0, 30.2 on rank 1 (reserved 20.2); the peak is in",
        "backward, step 4, train.py:31.",
        "0.348 s a step; 9,889 tokens/s; $0.39 a million tokens (at $14.00 an hour).",
    ]


def test_a_measured_run_without_tokens_has_the_price_of_its_whole_run_or_of_an_hour(run, folder):
    measured = {"usd": 3.5, "source": "measured", "summary": {"step_seconds": 0.36}}
    lasts = {**GROWTH, "out_of_memory_step": None, "end_step": 1000}
    ended = shown(run(command={"growth": lasts}, **measured), folder)
    assert "\n0.360 s a step; 1,000 steps: 6 min 00 s, $0.35 (at $3.50 an hour).\n" in ended
    assert "\n0.360 s a step; $3.50 an hour.\n" in shown(run(**measured), folder)


def test_a_run_that_lacks_a_rank_is_incomplete(run, folder):
    record = run(gpus=2, ranks=[{}], source="measured", summary={"step_seconds": 0.5})
    assert "Incomplete: no values of rank 1 (of 2)" in shown(record, folder)


def test_on_a_cpu_nothing_can_be_full(record, rank, folder):
    on_cpu = {"memory_source": LIVE_TENSORS, "device_used_bytes": None, "device_name": "CPU"}
    demo = record(ranks=[rank(0, **on_cpu), rank(1, **on_cpu, host_peak_bytes=GIB // 2)])
    assert shown(demo, folder).splitlines()[0] == (
        "Trained on 2 CPU ranks: 2.00 GiB of tensors, 1.00 GiB on rank 0, 0.50 on rank 1 resident; the peak"
    )
    peak = {"step": 2, "phase": "backward", "where": "train.py:7", "bytes": GIB}
    alone = rank(
        0, memory_source=HOST, phases={}, attached={"peak": peak, "phases": {"load": {"host_peak_bytes": GIB}}}
    )
    of_command = replace(demo, ranks=[{**alone, "peak_allocated_bytes": None}])
    assert shown(of_command, folder).splitlines()[0] == (
        "Trained on 2 CPU ranks: 1.00 GiB resident; the peak is in backward, step 2, train.py:7."
    )
    assert "resident    GiB\nload" in shown(of_command, folder)


def test_a_run_that_takes_more_than_it_needs(run, folder):
    record = run("RTX 4090", gib=23.5, summary=fits(0.4, needed_bytes=int(2.9 * GIB)), steps=CALIBRATED)
    text = shown(record, folder)
    assert text.startswith(
        "Fits on 1 x RTX 4090: needs 2.90 of 23.5 GiB; the peak is in backward, step 4, train.py:31.\n"
    )
    assert "Where memory is free it takes up to 21.0 GiB, and gives back what it does not need.\n" in text


def test_a_run_with_convolutions_has_its_need_and_what_cudnn_takes_at_most(run, folder):
    ranges = [{"choice": "workspaces", "device_used_bytes": [int(21 * GIB), int(31 * GIB)]}]
    lines = shown(run(command={"ranges": ranges}), folder).splitlines()
    assert lines[0].startswith("Fits on 1 x H200: needs 21.0 of 139.8 GiB; ")
    assert "cuDNN takes up to 10.0 GiB more for convolutions where that memory is free, and gives it back." in lines
    small = [{"choice": "workspaces", "device_used_bytes": [int(21 * GIB), int(21.1 * GIB)]}]
    assert "cuDNN" not in shown(run(command={"ranges": small}), folder)


def test_a_random_order_of_the_batches_has_a_range(run, folder):
    ranges = [{"choice": "order", "device_used_bytes": [int(21 * GIB), int(23 * GIB)]}]
    text = " ".join(shown(run(command={"ranges": ranges}), folder).split())
    assert "The loader shuffles without a seed: in other orders of the batches, it takes 21.0 to 23.0 GiB." in text
    equal = [{"choice": "order", "device_used_bytes": [21 * GIB, 21 * GIB]}]
    assert "shuffles" not in shown(run(command={"ranges": equal}), folder)


@pytest.mark.parametrize(("filters", "is_said"), [(60, True), (40, False)])
def test_a_measured_run_of_a_model_of_convolutions_may_need_less(run, folder, filters, is_said):
    record = run(source="measured")
    record.ranks[0]["attached"]["models"] = [{"parameters": 100, "convolution_parameters": filters}]
    assert ("the run may need less" in " ".join(shown(record, folder).split())) is is_said


def test_a_line_of_a_library_is_not_the_users(run, folder):
    peak = {"step": 3, "phase": "backward", "where": "site/trl/trainer/sft_trainer.py:1693", "bytes": 1}
    facts = {"versions": {"trl": "1.16.0"}, "script": {"path": "scripts/sft.py"}}
    of_library = run(ranks=[{"attached": {"peak": peak, **facts}}])
    assert "the peak is in backward, step 3.\n" in shown(of_library, folder)
    own = {**facts, "script": {"path": "site/trl/sft.py"}}
    assert "step 3,\nsft_trainer.py:1693.\n" in shown(run(ranks=[{"attached": {"peak": peak, **own}}]), folder)


def test_what_decided_a_branch_of_the_script_is_assumed_and_what_a_library_logs_is_not(run, folder):
    own = "mask.any() at train.py:4 was taken as True, which decided a branch"
    logs = "args.logging_nan_inf_filter and isnan(loss) at transformers/trainer.py:1911 (called at train.py:31)"
    assumed = {own: 2, f"{logs} was taken as False, which decided a branch": 9, "loss.item() at train.py:9": 4}
    text = shown(run(command={"assumed": assumed}), folder)
    assert "Not known, and decided a branch: mask.any() at train.py:4 was taken as True (2 times).\n" in text
    assert "nan" not in text


def test_a_capped_allocator_is_compared_with_its_share(run, folder):
    record = run()
    record.config.allocator.conf = "per_process_memory_fraction:0.5"
    assert "20.2 of 69.9 GiB that the allocator may take (allocated 19.5)" in shown(record, folder)


def test_long_sentences_leave_less_room_for_phases_and_for_what_was_assumed(run, folder):
    record = run(reason="x" * 5, command={"growth": GROWTH, "epochs": [EPOCH]}, summary=fits(0.4))
    whole, narrow = shown(record, folder).splitlines(), shown(record, folder, width=60).splitlines()
    assert max(map(len, narrow)) <= 60
    assert len(narrow) <= LINES and narrow[0].startswith("Fits on 1 x H200")
    assert len(whole) >= 11


@pytest.mark.parametrize("text", ["[/foo]", "\x1b]52;c;aGFja2Vk\x07", "\x1b[2J", "\u202egnp"])
def test_what_a_record_says_is_printed_and_not_obeyed(run, folder, text):
    record = run(text, ranks=[{"device_name": text}], status="failed", reason=text, source="measured")
    assert all(letter.isprintable() for letter in shown(record, folder).replace("\n", ""))


def test_every_record_of_the_results_has_its_answer_on_one_screen(monkeypatch):
    monkeypatch.chdir(ROOT / "results")
    folders = [RunFolder(path.parent) for path in Path().rglob("record.json")]
    assert len(folders) > 500
    for folder in folders:
        lines = screen(folder.read_record(), folder)
        assert len(lines) <= LINES and max(map(len, lines)) <= WIDTH, folder
        assert lines[0].startswith(("Fits on ", "Does not fit on ", "No answer: ")), folder
