"""Data of the page of explained runs: what is packed comes back, and the answer is the terminal's, word for word."""

import base64
import io
import zlib
from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from histories import MIB, explained, explained_run, out_of_memory, remedies_of, training
from rich.console import Console

from memlab.analyse.diff import ChangedKey
from memlab.analyse.explain.out_of_memory import LastPart
from memlab.analyse.explain.outside import ModelledDevice
from memlab.meters.owner import GRADIENTS, OPTIMIZER, WEIGHTS
from memlab.report import units
from memlab.report.explain_page.payload import packed, payload, steps
from memlab.report.explain_text import settings, show_difference, show_explained
from memlab.report.remedies_text import show_remedies
from memlab.simulator.outside.parts import OutsidePart
from memlab.simulator.trace.memory_kinds import ACTIVATIONS


def unpacked(column) -> list[int]:
    planes, rows = column["planes"], zlib.decompress(base64.b64decode(column["data"]))
    count = len(rows) // planes
    return [sum(rows[plane * count + at] << 8 * plane for plane in range(planes)) for at in range(count)]


@pytest.mark.parametrize("values", [[], [0], [0, 255], [256, 1, 0], [2**53 - 1, 2**40 + 7], [*range(0, 9_000, 7)]])
def test_what_is_packed_comes_back(values):
    column = packed(values)
    assert unpacked(column) == values
    assert column["planes"] == max(1, (max(values, default=0).bit_length() + 7) // 8)


def test_steps_add_up_to_the_values():
    values = [3, 3, 8, 1000]
    assert list(accumulate(steps(values))) == values and steps([]) == []


def texts(values: Any) -> Iterator[str]:
    """Yield all texts in nested lists and dictionaries."""
    if isinstance(values, str):
        yield values
    elif isinstance(values, dict | list | tuple):
        for value in values.values() if isinstance(values, dict) else values:
            yield from texts(value)


def printed(show, *what: Any) -> str:
    out = io.StringIO()
    show(*what, Console(file=out, width=5_000))
    return out.getvalue()


def test_the_answer_is_what_the_terminal_prints():
    """Of a run that ran out of memory, with a finding (each step keeps activations) and remedies."""
    rank = out_of_memory()
    remedies = remedies_of(rank)
    found = payload([explained_run(Path("run"), rank)], remedies)
    (run,) = found["runs"]
    failure, *_ = run["answer"]["failure"]["sentences"]
    assert failure.startswith("Rank 0 would run out of memory (forward, step 5, train.py:3): 40.0 MiB")
    assert len(run["answer"]["findings"]) == 1 and len(run["answer"]["sentences"]) == 2
    assert [row[0] for row in run["answer"]["phases"]["rows"]] == [
        *("model_build", "forward (of 5)", "optimizer_step (of 4)")
    ]
    assert [len(change["details"]) for change in found["remedies"]["changes"]] == [2, 0, 0]
    terminal = printed(lambda rank, out: show_explained(rank, out, 4), rank) + printed(show_remedies, remedies)
    shown = [text for text in texts([run["answer"], found["remedies"]]) if text]
    assert len(shown) > 60
    assert [text for text in shown if text not in terminal] == []


def test_kinds_of_sites_that_requested_nothing_have_no_colour():
    kinds = [kind["name"] for kind in payload([explained_run(Path("run"), explained(training(2, 40)))])["kinds"]]
    assert set(kinds) == {WEIGHTS, ACTIVATIONS, GRADIENTS, OPTIMIZER}


def test_a_request_that_failed_after_the_recording_is_told_with_what_was_held():
    """The page opens at the peak then: the failed request is not in the history."""
    rank = out_of_memory()
    assert payload([explained_run(Path("run"), rank)])["histories"][0]["failed"] == rank.oom.moment.event - 1
    later = replace(rank, oom=replace(rank.oom, last=(), last_parts=(LastPart("forward", 9, 1.5, MIB, MIB, MIB),)))
    found = payload([explained_run(Path("run"), later)])
    assert found["histories"][0]["failed"] is None
    failure = found["runs"][0]["answer"]["failure"]
    terminal = printed(lambda rank, out: show_explained(rank, out, 4), later)
    assert len(failure["sentences"]) == 2 and len(failure["before"]["rows"]) == 1
    assert failure["held"]["rows"][0][2] == "used"
    assert [text for text in texts(failure) if text not in terminal] == []


def test_the_answer_says_where_predicted_sizes_come_from():
    rank = out_of_memory()
    rank = replace(rank, device=replace(rank.device, provenance="measured in results/explain (NVIDIA H200)"))
    sentences = payload([explained_run(Path("run"), rank)])["runs"][0]["answer"]["sentences"]
    assert sentences[-1] == "Sizes outside the allocator were measured in results/explain (NVIDIA H200)."
    assert sentences[-1] in printed(lambda rank, out: show_explained(rank, out, 4), rank)


def test_a_rank_that_uses_more_than_the_one_that_is_shown_is_named():
    """The rank with the highest peak of allocated memory is shown; another one may use more of its GPU."""
    rank, other = (explained(replace(training(2, 20), rank=number)) for number in (0, 1))
    fuller = replace(other, device=ModelledDevice([OutsidePart(0, "CUDA context", "", 700 * MIB)]))
    run = replace(explained_run(Path("run"), rank), ranks=[rank, fuller])
    sentences = payload([run])["runs"][0]["answer"]["sentences"]
    used = units.size(fuller.used(fuller.peak).nbytes)
    assert sentences[-1] == f"Rank 1 uses more of its GPU at its own peak: {used}. --rank 1 explains it."
    assert sentences[-1] not in payload([replace(run, wanted=1)])["runs"][0]["answer"]["sentences"]


def test_two_runs_begin_with_their_difference():
    ranks = [explained(training(2, requests)) for requests in (20, 60)]
    changes = [ChangedKey("batch.micro", (1, 3))]
    found = payload([explained_run(Path(f"run{number}"), rank) for number, rank in enumerate(ranks)], None, changes)
    terminal = printed(lambda out: show_difference(*ranks, out, 4))
    first, second = found["difference"]
    assert first in terminal and first.startswith("The second run uses")
    assert second == settings(changes)
    assert payload([explained_run(Path("run"), ranks[0])])["difference"] == []
