"""Convolutions: what a run needs decides; what cuDNN takes beside it is a range that holds what it took."""

import csv
import sys
from pathlib import Path

import pytest
import torch

from memlab.cli.compose import compose_config
from memlab.core.sizes import GIB
from memlab.planner.user_command import predict_command
from memlab.report.remarks_text import assumed
from memlab.report.verdict_text import verdict
from memlab.runs.folder import RunFolder
from memlab.simulator.rank.stand_ins.convolutions import workspace_at_most

pytestmark = pytest.mark.shadow

RESULTS = Path(__file__).parents[2] / "results" / "convolutions_1xH100"


def sizes(text: str) -> list[int]:
    return [int(size) for size in text.split("x")]


@pytest.mark.parametrize("mode", ["heuristic", "search"])
def test_the_bound_holds_each_workspace_that_cudnn_took(mode, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", mode == "search")
    with (RESULTS / f"{mode}.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 411
    for row in rows:
        number = {name: int(row[name]) for name in ("batch", "channels", "filters", "stride", "padding", "groups")}
        size, window, is_transposed = sizes(row["size"]), sizes(row["window"]), row["transposed"] == "True"
        of_filters = [number["filters"], number["channels"]][:: -1 if is_transposed else 1]
        with torch.device("meta"):
            images = torch.empty(number["batch"], number["channels"], *size, dtype=getattr(torch, row["dtype"]))
            filters = images.new_empty(of_filters[0], of_filters[1] // number["groups"], *window)
        steps = [[number["stride"]] * len(size), [number["padding"]] * len(size), [int(row["dilation"])] * len(size)]
        out = torch.convolution(images, filters, None, *steps, is_transposed, [0] * len(size), number["groups"])
        at_most = workspace_at_most(images, filters, out, steps, number["groups"], row["direction"] == "weight")
        assert int(row["taken_bytes"]) <= at_most, row


@pytest.fixture
def predicted(tmp_path):
    """``predicted(mode)``: the record of the DCGAN of results/convolutions_1xH100 on an H100."""

    def predict(mode):
        config, _ = compose_config(["mode=predict", "hardware=h100_x1"])
        words = [sys.executable, str(RESULTS / "train.py"), "dcgan", mode]
        return predict_command(words, config.hardware, RunFolder(tmp_path / mode), steps=None)

    return predict


@pytest.mark.long(20)
@pytest.mark.parametrize("mode", ["heuristic", "search"])
def test_a_command_has_a_need_and_a_range_that_holds_what_it_took(mode, predicted):
    with (RESULTS / "measured.csv").open(encoding="utf-8") as file:
        (measured,) = (row for row in csv.DictReader(file) if (row["model"], row["mode"]) == ("dcgan", mode))
    record = predicted(mode)
    (found,) = record.command["ranges"]
    assert found["choice"] == "workspaces"
    for kind in ("allocated", "reserved"):
        low, high = found[f"peak_{kind}_bytes"]
        assert low <= int(measured[f"{kind}_bytes"]) <= high
    assert 1 <= found["peak_reserved_bytes"][0] / int(measured["limit_bytes"]) < 1.05
    assert "needs 0.85 of" in verdict(record)
    more = (found["device_used_bytes"][1] - found["device_used_bytes"][0]) / GIB
    assert f"cuDNN takes up to {more:.2f} GiB more" in " ".join(assumed(record))
