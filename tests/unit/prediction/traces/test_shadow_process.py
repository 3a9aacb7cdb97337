"""Why a trace is missing, from what the processes that should have made it said. No torch."""

import pytest

from memlab.training.simulated.shadow_process import LOG, EngineStart, Task, TraceKey, run_shadow

FAMILY = EngineStart(plan=0, rank=0)
POINTS = [TraceKey(0, micro, 8) for micro in (1, 2)]


@pytest.fixture
def reasons(tmp_path, monkeypatch, config):
    """What is told of the first of two points when the processes wrote ``logs`` and no trace."""
    from memlab.core.plan import make_plan
    from memlab.training.simulated import shadow_process

    def told(logs: dict[str, str]) -> str:
        def process(*arguments, **options):
            for name, text in logs.items():
                (tmp_path / name).write_text(text)
            return Ended()

        monkeypatch.setattr(shadow_process.subprocess, "Popen", process)
        plan = make_plan(config(), {})
        failures = run_shadow([Task(plan, point, tmp_path / point.file_name) for point in POINTS], tmp_path)
        return failures[0][1]

    return told


class Ended:
    pid, returncode = 2**31 - 1, 1  # nobody's

    def poll(self):
        return self.returncode

    wait = poll


def test_a_point_is_told_what_it_said_itself(reasons):
    first, second = (FAMILY.log_of(point.file_name) for point in POINTS)
    said = {first: "KeyError: 'of the first'\n", second: "ValueError: of the second\n", FAMILY.log: "started\n"}
    assert reasons(said) == "KeyError: 'of the first'"


def test_where_no_point_began_it_is_the_start_of_the_engine(reasons):
    assert reasons({FAMILY.log: "RuntimeError: no engine\n", LOG: ""}) == "RuntimeError: no engine"


def test_where_nothing_began_it_is_the_process(reasons):
    assert reasons({LOG: "ModuleNotFoundError: No module named 'deepspeed'\n"}).startswith("ModuleNotFoundError")


def test_a_launcher_does_not_speak_for_the_rank_that_failed(reasons):
    launcher = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n==== train.py FAILED\n"
    assert reasons({LOG: f"[rank0]: ValueError: of the script\n{launcher}"}) == "ValueError: of the script"
    assert reasons({LOG: f"[default0]:[rank0]: KeyError: 'b'\n{launcher}"}) == "KeyError: 'b'"
    assert reasons({LOG: launcher}).endswith("ChildFailedError: ==== train.py FAILED")


def test_a_message_may_begin_with_an_empty_line(reasons):
    text = "ImportError: \nA library was not found. See its page.\nRestart then.\n"
    assert reasons({LOG: text}) == "ImportError: A library was not found. See its page."


@pytest.mark.parametrize("rank", ["", "[rank0]: ", "[default1]:[rank1]: "])
def test_a_line_that_ends_with_a_colon_is_told_with_the_next_one(reasons, rank):
    text = f"{rank}ValueError: correct these values:\n{rank}- ds batch=7 vs hf batch=1\n{rank}Or use 'auto'.\n"
    assert reasons({LOG: text}) == "ValueError: correct these values: - ds batch=7 vs hf batch=1"


def test_a_wrong_argument_of_the_script_is_what_it_said(reasons):
    end = "SystemExit: The script ended itself with exit code 2 at bin/trl:8"
    said = "trl sft: error: argument --bf16: expected one argument"
    assert reasons({LOG: f"usage: trl sft [-h]\n{said}\n{end}\n"}) == said
    assert reasons({LOG: f"{end}\n"}) == end


def test_where_nobody_said_anything(reasons):
    assert reasons({LOG: ""}) == "its log is empty"
