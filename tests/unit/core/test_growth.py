"""Growth that is carried to the end of the run."""

import pytest

from memlab.cli.exit_codes import EXIT_CODES, GROWS_WITHOUT_END, exit_code
from memlab.cli.main import main
from memlab.core.errors import MemlabError
from memlab.core.growth import with_growth
from memlab.core.record import DOES_NOT_LAST
from memlab.core.sizes import GIB
from memlab.planner import user_command
from memlab.report.verdict_text import growth_sentence, when_memory_ends


@pytest.fixture
def grown(record, rank):
    """A command on a GPU of 80 GiB, 12 of which are used after 46 steps: 0.25 GiB more in each."""

    def build(status="ok", end_step=None, full_at_step=None, is_kept=True, is_emptied=False, used=12 * GIB, oom=None):
        kept_by = {
            "name": "losses",
            "where": "train.py:13",
            "bound": None,
            "keeps_graph": True,
            "is_scalar": False,
            "is_emptied": is_emptied,
        }
        facts = {
            "bytes_per_step": GIB // 4,
            "steps_seen": 30,
            "last_step": 46,
            "end_step": end_step,
            "kept_by": {**kept_by, "full_at_step": full_at_step, "bound": full_at_step} if is_kept else None,
        }
        memory = {"device_used_bytes": used, "device_total_bytes": 80 * GIB, "attached": {"growth": facts}, "oom": oom}
        return with_growth(record(status=status, ranks=[{**rank(0), **memory}], command={"exit_code": 0}))

    return build


def test_a_list_that_grows_to_the_end_of_a_known_run_does_not_last(grown):
    found = grown(end_step=400)
    assert found.summary["verdict"] == DOES_NOT_LAST
    assert found.command["growth"]["out_of_memory_step"] == 46 + 68 * 4 + 1
    assert exit_code(found) == EXIT_CODES["gpu_oom"]
    assert when_memory_ends(found.command["growth"]) == "out of memory near step 319 of 400"
    assert growth_sentence(found.command["growth"]) == (
        "0.25 GiB more a step: train.py:13 keeps tensors of each step in `losses`; keep a copy on the CPU, "
        ".detach().cpu(), or of the needed part alone, .detach().clone()."
    )
    found.command["growth"]["kept_by"]["is_scalar"] = True
    assert growth_sentence(found.command["growth"]).endswith("in `losses`; keep each number, .item().")


def test_without_a_known_end_the_step_is_named_and_the_exit_code_is_its_own(grown):
    found = grown()
    assert found.summary["verdict"] == DOES_NOT_LAST
    assert exit_code(found) == GROWS_WITHOUT_END not in EXIT_CODES.values()
    assert when_memory_ends(found.command["growth"]) == "out of memory near step 319"


@pytest.mark.parametrize("ends", [{"end_step": 100}, {"full_at_step": 100}, {"end_step": 400, "full_at_step": 100}])
def test_growth_that_ends_in_time_fits_with_what_is_needed_then(grown, ends):
    found = grown(**ends)
    assert "verdict" not in found.summary and exit_code(found) == 0
    assert found.command["growth"]["need_bytes"] == (12 + 54 / 4) * GIB
    assert "25.5 GiB are needed then" in growth_sentence(found.command["growth"])


def test_a_bound_that_comes_too_late_does_not_last(grown):
    assert grown(full_at_step=1000).summary["verdict"] == DOES_NOT_LAST


def test_without_a_variable_that_keeps_it_the_verdict_stays(grown):
    found = grown(is_kept=False)
    assert "verdict" not in found.summary and exit_code(found) == 0
    assert "grew over 30 steps, and no variable was found" in growth_sentence(found.command["growth"])


@pytest.mark.parametrize("ends", [{}, {"end_step": 100}, {"full_at_step": 100}])
def test_a_variable_that_is_emptied_is_named_and_not_carried_on(grown, ends):
    found = grown(is_emptied=True, **ends)
    assert "verdict" not in found.summary
    assert growth_sentence(found.command["growth"]) == (
        "0.25 GiB more a step: memory grew over 30 steps; train.py:13 keeps tensors in `losses`, which the script also "
        "empties."
    )


def test_a_damaged_record_without_the_end_of_growth_has_its_sentence(grown):
    growth = grown(end_step=100).command["growth"] | {"end_step": None}
    assert "more a step, until the end: train.py:13 keeps tensors in `losses`; 25.5 GiB" in growth_sentence(growth)


def test_a_run_that_the_time_limit_ended_is_carried_on(grown):
    assert grown(status="timeout").summary["verdict"] == DOES_NOT_LAST


def test_a_run_out_of_memory_names_the_growth_without_which_the_request_had_found_room(grown):
    found = grown(status="gpu_oom", used=80 * GIB, oom={"requested_bytes": GIB})
    assert "`losses`" in growth_sentence(found.command["growth"]) and "verdict" not in found.summary
    assert found.command["growth"]["out_of_memory_step"] == 47 and exit_code(found) == EXIT_CODES["gpu_oom"]
    assert "growth" not in grown(status="gpu_oom", used=80 * GIB, oom={"requested_bytes": 20 * GIB}).command
    assert "growth" not in grown(status="gpu_oom", oom={"requested_bytes": GIB}, is_kept=False).command


def test_growth_is_no_reason_of_a_request_that_fails_before_it_on_simulated_gpus(grown):
    failed = {"status": "gpu_oom", "used": 80 * GIB}
    assert "growth" not in grown(**failed, oom={"requested_bytes": GIB, "step": 2}).command
    assert grown(**failed, oom={"requested_bytes": GIB, "step": 5}).command["growth"]["out_of_memory_step"] == 5


def test_what_is_still_free_counts_for_the_request_that_failed(grown):
    oom = {"requested_bytes": 2 * GIB, "step": 5}
    assert "growth" in grown(status="gpu_oom", used=79 * GIB, oom=oom).command
    assert "growth" not in grown(status="gpu_oom", used=80 * GIB, oom=oom).command


def test_the_rank_whose_memory_ends_first_decides(grown):
    one, other = grown(), grown(used=40 * GIB)
    both = with_growth(one.__class__(**{**vars(one), "ranks": [*one.ranks, {**other.ranks[0], "rank": 1}]}))
    assert both.command["growth"]["rank"] == 1


@pytest.mark.parametrize(
    ("options", "is_kept", "tried"), [([], True, False), ([], False, True), (["--changes"], True, True)]
)
def test_no_change_is_tried_against_a_leak_unless_requested(grown, monkeypatch, tmp_path, options, is_kept, tried):
    record = grown(status="gpu_oom", used=80 * GIB, oom={"requested_bytes": GIB}, is_kept=is_kept)
    record.summary["verdict"] = "does_not_fit"
    found = []

    def predict(command, hardware, folder, steps, wants_changes, *rest):
        found.append(wants_changes(record))
        raise MemlabError("enough")

    monkeypatch.setattr(user_command, "predict_command", predict)
    with pytest.raises(SystemExit):
        main(["predict", *options, "--output", str(tmp_path / "run"), "hardware=h100_x1", "--", "python", "train.py"])
    assert found == [tried]
