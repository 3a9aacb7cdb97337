"""Costs that are fitted to steps whose costs are known. No torch."""

import json
import os
import signal
from dataclasses import replace

import numpy as np
import pytest

from memlab.core.config import Config, Hardware, ZeroStage
from memlab.core.errors import MemlabError
from memlab.prediction.time.calibrate import Calibration, check_calibrations, read_calibration, shipped
from memlab.prediction.time.clocks import LOWER_BOUND, Costs, step_seconds
from memlab.prediction.time.cost_fit import Case, fit_costs, non_negative_least_squares, weighted_quantile
from memlab.runs.folder import RunFolder
from memlab.simulator.trace.trace_format import Trace
from memlab.simulator.trace.work_items import HALF, Collective, HostWork, KernelLaunch, StreamWaitsForCollective

HARDWARE = Hardware(
    gpu="a round one",
    gpus=4,
    bf16_tflops=100.0,
    fp32_tflops=10.0,
    memory_gb_per_s=1000.0,
    link_gb_per_s=100.0,
    host_gb_per_s=10.0,
)

OF_OFFLOAD = ["host_link", "pageable_link", "to_host_converted", "from_host_converted", "host_byte_s"]
TRUE = Costs(compute=1.6, memory=1.25, link=1.4, operator_s=6e-6, module_s=1e-4, hook_s=3e-4, collective_s=2e-4)


def case(number: int, stage: int, operators: int, modules: int, flops: int, nbytes: int, gathered: int = 0) -> Case:
    """a step of 10 layers: a product, something element by element, and perhaps a collective that is waited for."""
    layer = [
        KernelLaunch(operators, modules, 0, HALF, flops, (1000,)),
        KernelLaunch(operators, 0, 0, HALF, 0, (nbytes,)),
    ]
    work = [item for index in range(10) for item in (*layer, *_gather(index, gathered))]
    config = Config(hardware=HARDWARE, zero_stage=ZeroStage(stage=stage))
    traces = {0: Trace(0, 4, work=work)}
    return Case(
        f"case {number}",
        f"family {number // 7}{'ab'[number % 7 > 3]}",
        config,
        traces,
        step_seconds(config, traces, TRUE),
    )


def _gather(index: int, nbytes: int):
    return [Collective(1, 0, 0, 0, 4, nbytes), StreamWaitsForCollective(0, 0, 0, index)] if nbytes else []


def cases() -> list[Case]:
    made = []
    for size in (1, 2, 3, 4):
        made += [
            case(len(made), 2, 20 * size, 1, 1000, 1000),  # the host decides
            case(len(made) + 1, 2, 5, 8 * size, 1000, 1000),
            case(len(made) + 2, 3, 5, 8 * size, 1000, 1000),
            case(len(made) + 3, 2, 5, 1, size * 10**12, 1000),  # arithmetic
            case(len(made) + 4, 2, 5, 1, 1000, size * 10**10),  # memory
            case(len(made) + 5, 3, 5, 1, 1000, 1000, size * 10**9),  # the links
            case(len(made) + 6, 2, 5, 0, 1000, 1000, 1000 + size),  # asking for collectives
        ]
    return made


def test_known_costs_are_found_again():
    found = fit_costs(cases())
    for name in ("compute", "memory", "link", "operator_s", "module_s", "hook_s", "collective_s"):
        assert getattr(found.costs, name) == pytest.approx(getattr(TRUE, name), rel=0.03), name
    assert found.undetermined == OF_OFFLOAD
    assert all(getattr(found.costs, name) == getattr(LOWER_BOUND, name) for name in found.undetermined)


def test_a_fit_ends_where_signals_do_not_end_its_processes():
    """A memlab that is being ended keeps its handlers, and its forks have them too."""
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    late = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("the fit's processes live on"))
    signal.alarm(60)
    try:
        fit_costs(cases())
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGTERM, before)
        signal.signal(signal.SIGALRM, late)


def test_what_the_records_do_not_tell_comes_from_elsewhere():
    """Without collectives and stage 3 nothing tells their costs; with those of other runs nothing is left out."""
    alone = [each for each in cases() if each.config.zero_stage.stage == 2 and len(each.traces[0].work) == 20]
    elsewhere = {"link": 2.0, "hook_s": 5e-4, "collective_s": 1e-3}
    found = fit_costs(alone, elsewhere)
    assert set(elsewhere) <= set(found.from_shipped)
    assert {name: getattr(found.costs, name) for name in elsewhere} == elsewhere
    assert found.undetermined == OF_OFFLOAD
    assert found.costs.compute == pytest.approx(TRUE.compute, rel=0.03)
    assert found.left_out == []


def test_the_error_is_that_of_configurations_that_were_not_seen():
    """One family that is twice as slow as its work says is not explained by the others."""
    odd = [replace(each, seconds=2 * each.seconds) if each.family == "family 0a" else each for each in cases()]
    found = fit_costs(odd)
    errors = [error for each, error in zip(found.cases, found.errors, strict=True) if each.family == "family 0a"]
    assert errors == pytest.approx([1.0] * 4, abs=0.05)
    assert found.error(1.0) == pytest.approx(1.0, abs=0.05)
    assert fit_costs(cases()).error(1.0) < 0.05


def test_a_record_that_depends_on_what_is_not_determined_is_left_out():
    host = Trace(0, 4, work=[HostWork(10, 1, (10**10,))])
    only = Case("offloaded", "offloaded", Config(hardware=HARDWARE), {0: host}, 1.0)
    found = fit_costs([*cases(), only])
    assert found.left_out == [only]
    assert found.costs.operator_s == pytest.approx(TRUE.operator_s, rel=0.03)


def test_what_one_configuration_alone_tells_is_not_judged_by_it():
    gathering = [replace(each, family="gathers") for each in cases() if each.config.zero_stage.stage == 3]
    linked = [each for each in gathering if any(isinstance(item, Collective) for item in each.traces[0].work)]
    found = fit_costs([each for each in cases() if len(each.traces[0].work) == 20] + linked)
    assert "link" in found.determined_once and "operator_s" not in found.determined_once
    judged = {each.family for each, error in zip(found.cases, found.errors, strict=True) if not np.isnan(error)}
    assert "gathers" not in judged and len(judged) > 3
    assert found.error(0.9) < 0.05


@pytest.mark.parametrize("few", [cases()[:5], [each for each in cases() if each.family in ("family 0a", "family 0b")]])
def test_too_few_records_are_refused(few):
    with pytest.raises(MemlabError, match=r"too few to calibrate on: at least 6 of 3 are needed"):
        fit_costs(few)


def test_runs_that_cannot_be_fitted_are_refused_before_anything_is_traced(config, record, tmp_path):
    def run(number: int, gpu: str) -> None:
        hardware = {"hardware.device": "cuda", "hardware.gpu": gpu, "hardware.bf16_tflops": 1.0}
        hardware |= {f"hardware.{key}": 1.0 for key in ("fp32_tflops", "memory_gb_per_s", "link_gb_per_s")}
        hardware |= {"hardware.host_gb_per_s": 1.0, "hardware.memory_gib": 80.0}
        folder = RunFolder(tmp_path / str(number))
        folder.path.mkdir()
        folder.finish(record(config=config(hardware)))

    def refusal() -> str:
        with pytest.raises(MemlabError) as error:
            check_calibrations([config({"predict.calibrate": str(tmp_path)})])
        return str(error.value)

    assert refusal() == f"predict.calibrate={tmp_path}: the folder holds no run with a record."
    run(1, "one")
    run(2, "one")
    assert refusal().startswith(
        f"predict.calibrate={tmp_path}: 2 usable records of 1 engine configurations are too few"
    )
    run(3, "another")
    assert refusal().endswith("A calibration is of one kind of GPU, and these runs are of another, one.")


def test_a_solution_has_no_negative_entry():
    matrix = np.array([[1.0, 1.0], [1.0, 2.0], [1.0, 3.0]])
    assert non_negative_least_squares(matrix, matrix @ [2.0, 0.5]) == pytest.approx([2.0, 0.5])
    assert non_negative_least_squares(matrix, np.array([3.0, 2.0, 1.0])) == pytest.approx([2.0, 0.0])


def test_every_family_weighs_the_same_in_a_quantile():
    values, weights = np.array([0.1] * 9 + [0.5, 0.9]), np.array([1 / 9] * 9 + [1.0, 1.0])
    assert [weighted_quantile(values, weights, q) for q in (0.3, 0.5, 0.9)] == [0.1, 0.5, 0.9]


def test_a_calibration_reads_as_it_was_written(tmp_path):
    written = Calibration("a round one", TRUE, ["host_link"], {"median": 0.1, "p90": 0.2}, ["case 1"])
    written.save(tmp_path / "mine.json")
    assert read_calibration(tmp_path / "mine.json") == written
    assert read_calibration(tmp_path / "mine.json").digest == written.digest


def test_the_links_of_a_path_to_a_calibration_are_followed(tmp_path):
    (tmp_path / "real").mkdir()
    shipped().save(tmp_path / "real" / "mine.json")
    (tmp_path / "folder").symlink_to("real")
    (tmp_path / "file.json").symlink_to("folder/mine.json")
    assert read_calibration(tmp_path / "folder" / "mine.json") == read_calibration(tmp_path / "file.json") == shipped()


def test_a_calibration_is_written_into_a_pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    shipped().save(tmp_path / "pipe")
    assert json.loads(os.read(reader, 1 << 16)) == json.loads(json.dumps(shipped().to_json()))
    os.close(reader)


def test_another_file_is_no_calibration(tmp_path):
    (tmp_path / "other.json").write_text(json.dumps({"gpu": "H200"}))
    with pytest.raises(MemlabError, match=r"other\.json is no calibration\. Give a folder of measured runs"):
        read_calibration(tmp_path / "other.json")


def test_what_ships_says_what_it_is_from():
    found = shipped()
    assert found.gpu == "NVIDIA H200"
    assert 0 < found.error["median"] <= found.error["p90"]
    assert len(found.records) >= 6 and found.versions["deepspeed"]
