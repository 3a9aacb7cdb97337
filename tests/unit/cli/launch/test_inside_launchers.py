"""launch.py inside torchrun, MPI or srun: one process says so, and none goes on."""

import pytest
from launched import lines


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"LOCAL_RANK": "0"}, 1),
        ({"LOCAL_RANK": "0", "RANK": "0"}, 1),
        ({"OMPI_COMM_WORLD_LOCAL_RANK": "0"}, 1),
        ({"LOCAL_RANK": "1"}, 0),
        ({"LOCAL_RANK": "1", "RANK": "1"}, 0),
        ({"LOCAL_RANK": "0", "RANK": "8"}, 0),
    ],
)
def test_inside_a_launcher_one_process_says_so_and_none_goes_on(launch, here, variables, words):
    done = launch("hardware=cpu", **variables)
    assert done.returncode == 2 and done.stdout == ""
    assert len(lines(done)) == words
    assert all("a distributed launcher started memlab" in line for line in lines(done))
    assert not list(here.iterdir())


@pytest.mark.parametrize(("task", "words"), [("0", 1), ("1", 0)])
def test_of_the_tasks_of_srun_one_says_so_and_none_goes_on(launch, here, task, words):
    done = launch("hardware=cpu", SLURM_STEP_NUM_TASKS="2", SLURM_PROCID=task)
    assert (done.returncode, done.stdout, len(lines(done))) == (2, "", words)
    assert all("srun started memlab in several tasks" in line and "srun --ntasks=1" in line for line in lines(done))
    assert not list(here.iterdir())


def test_a_single_task_of_srun_is_as_good_as_none(launch):
    """And so is a batch script: it has a task number, but is no step of srun's."""
    for variables in ({"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}, {"SLURM_NTASKS": "8", "SLURM_PROCID": "0"}):
        assert launch("hardware=cpu", "--cfg", "job", **variables).returncode == 0


def test_what_is_no_number_of_tasks_is_none_of_srun(launch):
    assert launch("hardware=cpu", "--cfg", "job", SLURM_STEP_NUM_TASKS="abc").returncode == 0
