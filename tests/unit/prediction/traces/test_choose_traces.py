"""What is traced of a configuration, and what follows from it. No torch: the shadow run is a formula."""

import errno
import os
from dataclasses import replace
from types import SimpleNamespace

import pytest

from memlab.core.plan import make_plan
from memlab.files import disk
from memlab.prediction.traces import choose_traces, store
from memlab.simulator.trace.events import Alloc
from memlab.simulator.trace.trace_format import Site, Trace
from memlab.training.simulated.shadow_process import TraceKey


def line(micro: int) -> int:
    return 1000 * micro


def bent(micro: int) -> int:
    return 1000 * (micro + 1) if micro < 3 else 2500 * micro


@pytest.fixture(params=[line])
def made(request, tmp_path, monkeypatch):
    """The points that were traced, in their order."""
    points = []

    def make(tasks, folder, on_progress=None):
        for task in tasks:
            point = task.key
            nbytes = request.param(point.micro) * (point.rank + 1) * point.tokens
            site = Site("activations", "", "", "", "", (1,))
            events = [Alloc(1, nbytes, 0, 0)]
            Trace(point.rank, 8, point.micro, point.tokens, events=events, sites=[site]).save(task.path)
            points.append(point)
        return []

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(choose_traces, "run_shadow", make)
    store.load.cache_clear()
    choose_traces._interpolator.cache_clear()
    return points


@pytest.fixture
def plan(config):
    def of(stage: int, micro: int, tokens: int = 64, accumulation: int = 1):
        hardware = {"hardware.device": "cuda", "hardware.gpu": "NVIDIA H200", "hardware.gpus": 8}
        values = config({**hardware, "seq_len.tokens": tokens})
        values = replace(values, zero_stage=replace(values.zero_stage, stage=stage))
        return make_plan(replace(values, batch=replace(values.batch, micro=micro, accumulation=accumulation)), {})

    return of


def sizes(points, rank):
    return [(point.micro, point.tokens) for point in points if point.rank == rank]


def test_three_points_of_the_first_rank_and_two_of_the_others(made, plan):
    choose_traces.trace_missing([plan(stage=1, micro=micro) for micro in (1, 2, 3)])
    assert sizes(made, 0) == [(1, 64), (2, 64), (3, 64)]
    assert sizes(made, 4) == sizes(made, 7) == [(1, 64), (2, 64)]
    found = choose_traces.known_traces(plan(stage=1, micro=20))
    assert {rank: trace.events[0].nbytes for rank, trace in found.items()} == {
        rank: line(20) * (rank + 1) * 64 for rank in (0, 4, 7)
    }


def test_points_that_differ_in_the_allocator_alone_are_one_point_to_choose_from(made, plan):
    lengths = [plan(stage=0, micro=1, tokens=tokens) for tokens in (1, 101, 201, 301, 401, 501)]
    twice = [
        replace(one.config, allocator=replace(one.config.allocator, conf="expandable_segments:True")) for one in lengths
    ]
    plans = [*lengths, *(make_plan(config, {}) for config in twice)]
    choose_traces.trace_missing(plans)
    assert sizes(made, 0) == [(1, 1), (1, 101), (1, 301), (1, 501)]
    assert all(map(choose_traces.known_traces, plans))


def test_at_another_length_the_others_are_traced_again(made, plan):
    choose_traces.trace_missing([plan(stage=1, micro=micro) for micro in (1, 2, 3)])
    assert choose_traces.known_traces(plan(stage=1, micro=2, tokens=128)) is None
    choose_traces.trace_missing([plan(stage=1, micro=2, tokens=128)])
    assert sizes(made, 4)[2:] == sizes(made, 7)[2:] == [(2, 128)]
    assert choose_traces.known_traces(plan(stage=1, micro=2, tokens=128)) is not None


def test_beside_a_second_point_a_third_is_traced_at_once(made, plan):
    for micro in (1, 4):
        choose_traces.traces(plan(stage=3, micro=micro))
    assert sizes(made, 0) == [(1, 64), (4, 64), (5, 57)]
    choose_traces.traces(plan(stage=3, micro=50, tokens=333))
    assert len(made) == 3


def test_two_points_of_as_many_tokens_need_one_more(made, plan):
    """A constant and so much for each token cannot be told from two numbers of tokens."""
    for micro, tokens in ((1, 128), (2, 64)):
        choose_traces.traces(plan(stage=3, micro=micro, tokens=tokens))
    assert sizes(made, 0) == [(1, 128), (2, 64), (3, 57), (4, 57)]


@pytest.mark.parametrize("made", [bent], indirect=True)
def test_two_points_say_nothing_where_the_first_rank_follows_no_law(made, plan):
    choose_traces.trace_missing([plan(stage=1, micro=micro) for micro in (1, 2, 3)])
    assert choose_traces.known_traces(plan(stage=1, micro=3)) is None
    found = choose_traces.traces(plan(stage=1, micro=3))
    assert {rank: trace.events[0].nbytes for rank, trace in found.items()} == {
        rank: bent(3) * (rank + 1) * 64 for rank in (0, 4, 7)
    }


def test_nodes_tell_traces_apart(plan):
    one = plan(stage=3, micro=1)
    two = make_plan(replace(one.config, hardware=replace(one.config.hardware, nodes=2)), {})
    assert store.trace_folder(one) != store.trace_folder(two)


def test_steps_of_many_micro_steps_share_what_is_traced_of_a_few(made, plan, monkeypatch):
    monkeypatch.setattr(
        choose_traces, "repeated", lambda trace, micro_steps: replace(trace, seconds=float(micro_steps))
    )
    found = [choose_traces.traces(plan(stage=3, micro=1, accumulation=number))[0].seconds for number in (8, 16)]
    assert found == [8.0, 16.0]
    assert made == [TraceKey(0, 1, 64)]


def test_all_micro_steps_are_traced_where_a_few_do_not_tell_the_others(made, plan, monkeypatch):
    monkeypatch.setattr(choose_traces, "repeated", lambda trace, micro_steps: None)
    for _ in range(2):
        assert choose_traces.traces(plan(stage=3, micro=1, accumulation=16))[0].events
    assert made == [TraceKey(0, 1, 64)] * 2  # with a few, then with all


@pytest.mark.parametrize("place", ["a file", "a file/below", "no permission", "a full disk"])
def test_a_prediction_goes_on_without_its_cache_and_says_so_once(made, plan, tmp_path, monkeypatch, capsys, place):
    (tmp_path / "a file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / place))
    if place == "no permission":  # tests may run as root, whom no permission stops

        def refuse(dir):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(dir))

        monkeypatch.setattr(disk.tempfile, "TemporaryFile", refuse)
    if place == "a full disk":
        monkeypatch.setattr(disk.shutil, "disk_usage", lambda folder: SimpleNamespace(free=disk.ROOM - 1))
    first = choose_traces.traces(plan(2, 1))
    traced = len(made)
    assert (
        choose_traces.traces(plan(2, 1)).keys() == first.keys() and len(made) == traced
    )  # known until the process ends
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"memlab: {tmp_path / place}/memlab: ") and "will be kept" in line
    assert not list(tmp_path.rglob("*.trace.json"))
