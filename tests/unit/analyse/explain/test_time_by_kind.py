"""A profiled step beside its prediction, by kind of work."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from memlab.analyse.explain.time_by_kind import KindTime, TimeComparison, compare, predicted_step, profiled
from memlab.core.basis import BOUND, Basis
from memlab.core.config import Config, Hardware, Training
from memlab.core.errors import RecordError
from memlab.prediction.time.calibrate import shipped
from memlab.prediction.time.work_kinds import ATTENTION, COMMUNICATION, COPIES, ELEMENTWISE, MATRIX_PRODUCTS, OPTIMIZER
from memlab.report.text import console
from memlab.report.time_text import show_time_by_kind
from memlab.runs.folder import RunFolder
from memlab.runs.operator_profile import OperatorProfile, OperatorTime, write_operators
from memlab.simulator.trace.trace_format import Trace
from memlab.simulator.trace.work_items import HALF, PINNED, BeginWorkPhase, Collective, Copy, KernelLaunch, Launcher

COMMAND = {"words": ["python", "train.py"]}
CONFIG = Config(
    hardware=Hardware(
        gpu="a round one", gpus=2, bf16_tflops=100.0, fp32_tflops=10.0, memory_gb_per_s=1000.0, link_gb_per_s=100.0,
        host_gb_per_s=10.0,
    )
)  # fmt: skip
MILLI_FLOPS = 10**11
TRACE = Trace(
    *(0, 2),
    phases=["forward", "optimizer_step"],
    launchers=[Launcher("aten.mm.default", "mlp"), Launcher("aten.add.Tensor", "")],
    work=[
        BeginWorkPhase(0, 0, 0),
        KernelLaunch(1, 0, 0, HALF, 3 * MILLI_FLOPS, (0,), 0),
        Collective(0, 0, 0, 2, 2, 100_000_000),
        KernelLaunch(1, 0, 0, HALF, MILLI_FLOPS, (0,), 1),
        BeginWorkPhase(0, 0, 1),
        KernelLaunch(1, 0, 0, HALF, MILLI_FLOPS, (0,), 1),
        Copy(0, 0, 0, False, PINNED, 10**7),
    ],
)
MEASURED = OperatorProfile(
    steps=2,
    step_seconds=[9e-3, 11e-3],
    busy_seconds=5e-3,
    operators=[
        OperatorTime("forward", "aten::mm", "gemm", 1, 2e-3, 0),
        OperatorTime("forward", "aten::_flash_attention_forward", "flash_fwd", 1, 1e-3, 0),
        OperatorTime("backward", "c10d::allreduce_", "ncclDevKernel_AllReduce_Sum_bf16", 1, 1e-3, 0),
        OperatorTime("optimizer_step", "aten::copy_", "Memcpy HtoD (Pinned -> Device)", 2, 5e-4, 0),
        OperatorTime("optimizer_step", "aten::copy_", "Memcpy DtoD (Device -> Device)", 1, 5e-4, 0),
        OperatorTime("forward", "aten::mm", "", 1, 7.0, 0),
    ],
)


def run_folder(path, **record):
    folder = RunFolder(path)
    values = {"source": "measured", "config": CONFIG, "command": {}, "summary": {"step_seconds": 8e-3}} | record
    folder.read_record = lambda: SimpleNamespace(**values)
    return folder


def test_kernels_of_a_profile_are_of_the_kinds_of_the_prediction():
    found = profiled(MEASURED)
    assert found.kinds == {
        MATRIX_PRODUCTS: KindTime(2e-3, 1),
        ATTENTION: KindTime(1e-3, 1),
        OPTIMIZER: KindTime(5e-4, 1),
        COMMUNICATION: KindTime(1e-3, 1),
        COPIES: KindTime(5e-4, 2),
    }
    assert (found.on, found.step_seconds, found.total) == (
        "device",
        pytest.approx(10e-3),
        KindTime(pytest.approx(5e-3), 6),
    )


def test_the_clocks_of_the_prediction_by_kind():
    found = predicted_step(CONFIG, TRACE)
    assert {kind: time.count for kind, time in found.kinds.items()} == dict.fromkeys(
        (MATRIX_PRODUCTS, ELEMENTWISE, OPTIMIZER, COMMUNICATION, COPIES), 1
    )
    assert found.kinds[MATRIX_PRODUCTS].seconds == pytest.approx(3e-3)
    assert found.kinds[COMMUNICATION].seconds == pytest.approx(1e-3)
    assert (found.busy_seconds, found.step_seconds) == (pytest.approx(6e-3), pytest.approx(6e-3))
    assert found.basis == Basis(BOUND, reason="no calibration for a round one")


def test_a_command_is_compared_with_its_prediction(tmp_path, capsys):
    measured = run_folder(tmp_path / "measured", command=COMMAND)
    predicted = run_folder(tmp_path / "predicted", source="predicted", command=COMMAND)
    for folder in (measured, predicted):
        folder.path.mkdir()
    write_operators(measured.operators_file(0), MEASURED)
    TRACE.save(predicted.path / "rank0.trace.json")
    found = compare(measured, predicted)
    assert (found.profiled, found.predicted) == (profiled(MEASURED), predicted_step(CONFIG, TRACE))
    show_time_by_kind(found, console())
    text = capsys.readouterr().out
    flat = " ".join(text.split())
    assert "A step took 8.00 ms, with the profiler 10.0 ms." in flat
    assert "The device is busy for 62 % of the measured step." in flat  # 5 of the 8 ms
    assert (
        "The predicted step takes 2.00 ms less: the device works 1.00 ms more (matrix products 1.00 ms more; "
        "elementwise, norms, indexing 1.00 ms more) and waits 3.00 ms less, for the host or for another rank."
    ) in flat
    assert ["matrix", "products", "2.00", "ms", "1", "3.00", "ms", "1", "1.50"] in [
        line.replace("│", " ").split() for line in text.splitlines()
    ]
    assert "memlab does not run a command again" in compare(measured).reason


def test_a_step_that_only_the_profiler_timed_is_called_so(capsys):
    show_time_by_kind(TimeComparison(profiled(MEASURED), None, None, "no prediction"), console())
    text = " ".join(capsys.readouterr().out.split())
    assert "A profiled step took 10.0 ms." in text
    assert "step with the profiler" in text and "without the profiler" not in text


def test_the_step_of_a_command_has_no_error_that_is_known():
    config = replace(CONFIG, hardware=replace(CONFIG.hardware, gpu="NVIDIA H200"), training=Training(loop="command"))
    assert "the script's own time between operators is not counted" in predicted_step(config, TRACE).basis.reason
    assert predicted_step(replace(config, training=Training()), TRACE).basis.error == shipped().error["p90"]


def test_a_run_that_was_not_profiled_is_told_how(tmp_path):
    with pytest.raises(RecordError, match="were profiled"):
        compare(run_folder(tmp_path, ranks=[{"attached": None}]))


def test_a_run_whose_disk_had_no_room_for_the_profile_is_told_why(tmp_path):
    ranks = [{"attached": {"meter_errors": ["listener of datasets: KeyError: 1", "torch's profiler: OSError: full"]}}]
    reason = (
        r"no steps were profiled \(torch's profiler: OSError: full\)\. Measure again: memlab measure --profile -- py"
    )
    with pytest.raises(RecordError, match=reason):
        compare(run_folder(tmp_path, ranks=ranks, command=COMMAND))


def test_a_command_whose_traces_are_gone_is_predicted_again(tmp_path):
    with pytest.raises(RecordError, match="the traces of this prediction are gone"):
        compare(run_folder(tmp_path, source="predicted", command=COMMAND))
