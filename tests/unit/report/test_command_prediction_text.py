"""The reader of a predicted command sees which batches were run, and what nobody has seen."""

from types import SimpleNamespace

from rich.console import Console

from memlab.report.command_prediction_text import package_sentences, range_sentences, read_ahead_sentences
from memlab.report.command_progress import CommandProgress
from memlab.runs.folder import RunFolder

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


def sentences(ended: str = "finished", steps: int | None = None, **epoch) -> list[str]:
    rank = {"attached": {"ended": ended, "steps": 16}}
    return read_ahead_sentences(SimpleNamespace(command={"epochs": [{**EPOCH, **epoch}], "steps": steps}, ranks=[rank]))


def test_the_dearest_batch_is_named_with_its_place_in_the_epoch():
    assert sentences() == [
        "All 1,200 batches of the epoch were read ahead.",
        "Step 3 here is step 929 of epoch 1 with a dearest batch, batch 1,857 of rank 3: input_ids 8 x 3,112.",
    ]


def test_nothing_dearer_is_said():
    assert sentences(dearest=[]) == [
        "All 1,200 batches of the epoch were read ahead: none is dearer than the first ones."
    ]


def test_ranks_that_read_alike_are_told_of_once():
    epochs = [{**EPOCH, "dearest": []}, EPOCH]
    told = read_ahead_sentences(SimpleNamespace(command={"epochs": epochs, "steps": None}, ranks=[]))
    assert told == sentences()


def test_what_was_not_read_is_said():
    assert "300 batches of 1,200 were read ahead in 3 s" in sentences(batches_read=300)[0]
    assert "is a stream" in sentences(batches=None, is_stream=True)[0]
    assert "could not be read ahead (ValueError: no)" in sentences(failure="ValueError: no")[0]


def test_the_shares_of_all_ranks_are_added_up_and_ranks_that_were_not_read_are_said():
    first = {**EPOCH, "is_shared": True, "read_by": 0, "ranks": 1, "ranks_read": 1, "batches_in_reach": 1200}
    others = {**first, "read_by": 63, "ranks": 63, "ranks_read": 12, "batches": 75_600, "batches_read": 3800}
    others["batches_in_reach"] = 14_400

    def told(*epochs):
        return read_ahead_sentences(SimpleNamespace(command={"epochs": list(epochs), "steps": None}, ranks=[]))[0]

    assert told(first, others) == (
        "Of the epoch of 64 ranks, 5,000 batches of 76,800 were read ahead in 3 s, spread evenly over 15,600 of them "
        "(13 of 64 ranks): a dearer one may be among the others."
    )
    assert told(first, {**first, "read_by": 1}) == "All 2,400 batches of the epoch of 2 ranks were read ahead."


def test_a_loader_that_does_not_show_the_shares_of_other_ranks_is_said():
    others = {"is_shared": False, "read_by": 3, "ranks": 3, "ranks_read": 1, "batches_in_reach": 1200}
    assert sentences(**others)[:2] == [
        "All 1,200 batches of the epoch were read ahead.",
        "The loader does not show which batches other ranks read: those of one rank were read.",
    ]


def test_an_epoch_without_a_known_length_is_said():
    told = sentences(batches=None, batches_read=300, batches_in_reach=300, is_stream=False)[0]
    assert "300 batches of an unknown number were read ahead in 3 s, spread evenly over 300 of them" in told
    assert "is a stream" in sentences(batches=None, is_stream=True)[0]


def test_what_follows_a_loop_without_end_is_said():
    assert "goes on after 16 steps" in sentences(ended="stopped")[-1]
    assert sentences(ended="stopped", steps=16) == sentences()


def test_both_ends_of_what_nobody_knows_are_one_sentence():
    known = {"choice": "generation", "rank": 0, "peak_allocated_bytes": [2 << 30, 3 << 30]}
    failed = {"choice": "routing", "rank": 0, "failure": "IndexError: 3"}
    assert range_sentences(SimpleNamespace(command={"ranges": [known, failed]})) == [
        "The peak may be 2.00 to 3.00 GiB: all other figures are for generations as long as they may be, the other end "
        "is generations that end as soon as they may.",
        "The peak is for tokens spread over all experts. That for all tokens at the same experts could not be "
        "predicted: IndexError: 3.",
    ]


def test_the_progress_says_how_far_an_epoch_is_read_ahead(tmp_path):
    progress = CommandProgress(RunFolder(tmp_path), Console(), 1800)
    (tmp_path / "command.log").write_text("loading\nmemlab: 1,200 of 5,000 batches of the epoch read ahead\n")
    assert progress.line().endswith(" s: 1,200 of 5,000 batches of the epoch read ahead")
    (tmp_path / "command.log").write_text("memlab: 1,200 of 5,000 batches of the epoch read ahead\nstep 1\n")
    assert progress.line().endswith(
        "waiting for the script's first optimizer step, its last output: step 1; it is ended after 1,800 s (--timeout)"
    )


def test_trl_without_triton_is_said_because_gpu_machines_have_it():
    def told(source, **versions):
        return package_sentences(SimpleNamespace(source=source, environment=versions))

    assert "pip install triton" in told("predicted", trl="1.16.0", triton=None)[0]
    assert told("predicted", trl="1.16.0", triton="3.6.0") == told("predicted", trl=None) == []
    assert told("measured", trl="1.16.0") == []
