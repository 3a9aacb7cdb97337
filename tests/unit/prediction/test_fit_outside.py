"""Sizes of what lies outside the allocator, fitted to the readings of measured runs."""

import csv
import json
import tarfile
from dataclasses import asdict
from pathlib import Path

import pytest

from memlab.core.errors import MemlabError
from memlab.prediction.fit_outside import check_sizes, fit, read_ranks, sizes_from
from memlab.prediction.memory.rank_results import gpu_memory
from memlab.simulator.outside.parts import SHIPPED, shipped
from memlab.simulator.trace.events import Alloc
from memlab.simulator.trace.trace_format import Trace

READINGS = Path(__file__).parents[3] / "results" / "explain" / "readings.csv"
MIB = 1 << 20

HEAD = "run,rank,ranks,phase,module,call,handle,outside_bytes\n"


def readings(tmp_path, *rows: str) -> Path:
    path = tmp_path / "readings.csv"
    path.write_text(HEAD + "".join(f"{row}\n" for row in rows))
    return path


def test_the_shipped_sizes_are_those_of_the_readings():
    known = shipped()
    assert asdict(fit(read_ranks(READINGS), known.gpu, known.versions, known.source)) == json.loads(SHIPPED.read_text())


def test_runs_that_were_recorded_later_show_the_same_sizes():
    later, known = asdict(sizes_from(str(READINGS.with_name("readings_later.csv")))), asdict(shipped())
    sizes = [name for name, size in known.items() if isinstance(size, dict) and "nbytes" in size]
    assert {name: later[name]["nbytes"] - known[name]["nbytes"] for name in sizes} == {
        **dict.fromkeys(sizes, 0),
        "handle_in_forward": 2 * MIB,
        "handle_in_backward": 2 * MIB,
        "further_kernels": -2 * MIB,
    }
    whole = [sum(each["nccl"][part] for part in ("library", "communicator", "collective")) for each in (later, known)]
    assert whole[0] == pytest.approx(whole[1], abs=6 * MIB)


def test_the_table_of_measured_and_predicted_has_the_figures_of_the_records():
    with (READINGS.parent / "outside.csv").open() as file:
        rows = {row["run"]: row for row in csv.DictReader(file)}
    with READINGS.open() as file:
        assert rows.keys() == {row["run"] for row in csv.DictReader(file)}
    with tarfile.open(READINGS.parent / "records.tgz") as archive:
        for source, column in (("measured", "measured"), ("predicted", "before")):
            for run, row in rows.items():
                ranks = json.load(archive.extractfile(f"{source}/{run}/record.json"))["ranks"]
                outside = max(rank["device_used_bytes"] - rank["peak_reserved_bytes"] for rank in ranks)
                assert int(row[column]) == round(outside / MIB), (run, column)


def test_a_reading_of_two_things_is_told_apart_by_those_of_one(tmp_path):
    """The first collective of ``ddp`` came with the first kernel, and the first one of ``fsdp`` without."""
    context, first, stream = ("load", "set_device", 0, 500), ("load", "", 0, 90), ("load", "", 0, 70)

    def call(name: str, grown: int) -> tuple:
        return "load", name, 0, grown

    whole = [
        ("a", 1, [context, first, call("broadcast of g", 570)]),
        ("b", 1, [context, call("broadcast of g", 660), call("broadcast of h", 400)]),
        ("ddp", 2, [context, call("allgather of g", 940)]),
        ("fsdp", 2, [context, first, stream, call("allgather of g", 780)]),
        (
            "zero3",
            2,
            [context, call("eager_connect of g", 500), call("barrier of g", 440), call("eager_connect of h", 200)],
        ),
        ("zero2", 2, [context, first, call("broadcast of g", 850), call("broadcast of h", 500)]),
    ]
    steps = [("first_forward", "", 1, 66), ("first_forward", "", 0, 8), ("first_backward", "", 1, 64)]
    steps += [("first_backward", "", 0, 8), ("forward", "", 0, 2)]
    rows = []
    for run, ranks, begin in whole:
        total = 0
        for phase, call, handle, grown in [*begin, *steps]:
            total += grown * MIB
            rows.append(f"{run},0,{ranks},{phase},module,{call},{handle},{total}")
    found = fit(read_ranks(readings(tmp_path, *rows)), "a GPU", "", "")
    assert [size.nbytes // MIB for size in (found.context, found.first_kernel, found.stream)] == [500, 90, 70]
    assert [found.handle_in_forward.nbytes // MIB, found.handle_in_backward.nbytes // MIB] == [66, 64]
    assert [found.attention_forward.nbytes // MIB, found.attention_backward.nbytes // MIB] == [8, 8]
    assert found.further_kernels.nbytes == 2 * MIB
    alone, several = found.nccl_alone, found.nccl
    assert (alone.library // MIB, (alone.communicator + alone.collective) // MIB) == (100, 400)
    assert [several.library // MIB, several.communicator // MIB, several.collective // MIB] == [280, 200, 300]
    assert several.error <= 1


def test_the_first_kernels_may_come_after_the_first_product(tmp_path):
    rows = [
        "load,,set_device,0,500",
        "first_forward,0.0,,1,566",
        "first_forward,0.1,,0,656",
        "first_forward,attn,,0,664",
    ]
    path = readings(tmp_path, *(f"layers,0,1,{row}000000" for row in rows))
    found = fit(read_ranks(path), "", "", "", otherwise=shipped())
    sizes = found.first_kernel, found.handle_in_forward, found.attention_forward
    assert [size.nbytes for size in sizes] == [90_000_000, 66_000_000, 8_000_000]


def test_readings_of_ones_own_come_before_the_shipped_sizes(tmp_path, config):
    rows = ["mine,0,2,load,,set_device,0,400", "mine,0,2,load,,,0,480", "mine,0,2,load,,barrier of g,0,1480"]
    path = str(readings(tmp_path, *(f"{row}000000" for row in rows)))
    own, known = sizes_from(path), shipped()
    assert (own.context.nbytes, own.first_kernel.nbytes) == (400_000_000, 80_000_000)
    assert own.provenance == f"measured in {path}; what it does not show, in results/explain (NVIDIA H200)"
    assert own.handle_in_forward == known.handle_in_forward and own.nccl_alone == known.nccl_alone
    whole = own.nccl.library + own.stream.nbytes + own.nccl.communicator + own.nccl.collective
    assert whole == pytest.approx(1_000_000_000, abs=4 * MIB)
    trace = Trace(0, 1, events=[Alloc(1, 1, 0, 0)])
    outside = [gpu_memory(config({"predict.outside": each}), [trace]).outside for each in (path, None)]
    assert outside[0] == outside[1] - known.context.nbytes - known.first_kernel.nbytes + 480_000_000


@pytest.mark.parametrize("content", ["", "run,rank\na,0\n", f"{HEAD}a,0,one,,,,0,1\n", None])
def test_another_file_is_refused_in_one_line(tmp_path, config, content):
    path = tmp_path / "own.csv"
    if content is not None:
        path.write_text(content)
    with pytest.raises(MemlabError, match="not the readings of measured runs") as error:
        check_sizes([config({"predict.outside": str(path)})])
    assert "\n" not in str(error.value)
