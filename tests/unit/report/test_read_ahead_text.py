"""The reader of a predicted command sees which batches were looked at, and which were not."""

from types import SimpleNamespace

from memlab.report.remarks_text import read_ahead_sentences

EPOCH = {
    "purpose": "training",
    "batches": 1200,
    "batches_read": 1200,
    "seconds": 3.2,
    "failure": None,
    "is_stream": False,
    "is_run_whole": False,
    "batches_run_first": 4,
    "batches_per_step": 2,
    "dearest": [
        {"rank": 3, "epoch": 1, "batch": 1857, "step": 929, "run_as_step": 3, "shapes": {"input_ids": [8, 3112]}}
    ],
}


def of_epochs(*epochs, ended: str = "finished", steps: int | None = None, verdict: str = "fits") -> list[str]:
    command, rank = {"epochs": list(epochs), "steps": steps}, {"attached": {"ended": ended, "steps": 16}}
    return read_ahead_sentences(SimpleNamespace(command=command, ranks=[rank], summary={"verdict": verdict}))


def sentences(ended: str = "finished", steps: int | None = None, verdict: str = "fits", **epoch) -> list[str]:
    return of_epochs({**EPOCH, **epoch}, ended=ended, steps=steps, verdict=verdict)


LARGEST = "; the largest, batch 1,857 of rank 3 (8 x 3,112 tokens), was run."


def test_the_largest_batch_is_named():
    assert sentences() == [f"All 1,200 batches were looked at{LARGEST}"]


def test_no_larger_batch_than_the_first_ones_is_said():
    assert sentences(dearest=[]) == ["All 1,200 batches were looked at; the first ones are the largest."]


def test_the_number_of_replayed_steps_is_said():
    assert sentences(steps_of_epoch=600, steps_replayed=600) == [
        f"All 1,200 batches were looked at{LARGEST}",
        "All 600 optimizer steps of the epoch were replayed in their order.",
    ]
    assert sentences(steps_of_epoch=600, steps_replayed=30)[1] == (
        "30 of the 600 optimizer steps of the epoch were replayed in their order; those with the largest batches come "
        "after them."
    )
    assert sentences(is_run_whole=True, dearest=[]) == ["All 1,200 batches were looked at; all of them ran."]


def test_ranks_that_read_the_same_are_one_sentence():
    assert of_epochs({**EPOCH, "dearest": []}, EPOCH) == sentences()


def test_what_was_not_read_is_said():
    assert sentences(batches_read=300)[0].startswith("300 of 1,200 batches of the epoch were looked at")
    assert "a larger one may be among the others" in sentences(batches_read=300)[0]
    assert "is a stream" in sentences(batches=None, is_stream=True)[0]
    assert "could not be looked at (ValueError: no)" in sentences(failure="ValueError: no")[0]
    unknown = sentences(batches=None, batches_read=300, batches_in_reach=300)[0]
    assert unknown.startswith("300 batches of the epoch were looked at; a larger one may be")


def test_the_shares_of_all_ranks_are_added_up_and_ranks_that_were_not_read_are_said():
    first = {**EPOCH, "is_shared": True, "read_by": 0, "ranks": 1, "ranks_read": 1, "batches_in_reach": 1200}
    first["dearest"] = []
    others = {**first, "read_by": 63, "ranks": 63, "ranks_read": 12, "batches": 75_600, "batches_read": 3800}
    others["batches_in_reach"] = 14_400
    assert of_epochs(first, others) == [
        "5,000 of 76,800 batches of the epoch of 64 ranks were looked at; a larger one may be among the others."
    ]
    assert of_epochs(first, {**first, "read_by": 1}) == [
        "All 2,400 batches of the epoch of 2 ranks were looked at; the first ones are the largest."
    ]


def test_a_loader_that_does_not_show_the_shares_of_other_ranks_is_said():
    others = {"is_shared": False, "read_by": 3, "ranks": 3, "ranks_read": 1, "batches_in_reach": 1200}
    assert sentences(**others) == [
        sentences()[0],
        "The loader does not show which batches other ranks read: those of one rank were read.",
    ]


def test_what_follows_a_loop_without_end_is_said():
    assert "goes on after 16 steps" in sentences(ended="stopped")[-1]
    assert sentences(ended="stopped", steps=16) == sentences()
    assert sentences(ended="stopped", verdict="does_not_last") == sentences()
