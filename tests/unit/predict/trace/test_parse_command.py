"""The words of a training command: launcher, script, ranks and their environment."""

import pytest

from memlab.predict.trace.parse_command import CommandError, environment, parse, ranks_of_a_node


@pytest.mark.parametrize(
    ("words", "launcher", "program", "arguments", "ranks"),
    [
        ("python train.py --batch 4", "python", "train.py", ("--batch", "4"), None),
        ("python -u -X dev train.py", "python", "train.py", (), None),
        ("/usr/bin/python3.11 train.py -m", "python", "train.py", ("-m",), None),
        ("torchrun --nproc-per-node 4 train.py --x", "torchrun", "train.py", ("--x",), 4),
        ("torchrun --standalone --nproc_per_node=2 train.py", "torchrun", "train.py", (), 2),
        ("torchrun --nproc-per-node gpu train.py", "torchrun", "train.py", (), None),
        ("python -m torch.distributed.run --nproc-per-node 2 train.py a", "torchrun", "train.py", ("a",), 2),
        ("deepspeed --num_gpus 8 --master_port 9 train.py --deepspeed z.json", "deepspeed", "train.py",
         ("--deepspeed", "z.json"), 8),
        ("deepspeed train.py", "deepspeed", "train.py", (), None),
        ("accelerate launch --multi_gpu --num_processes 4 train.py -q", "accelerate", "train.py", ("-q",), 4),
    ],
)  # fmt: skip
def test_a_command_is_read(words, launcher, program, arguments, ranks):
    command = parse(words.split())
    found = (command.launcher, command.program, command.arguments, command.ranks)
    assert found == (launcher, program, arguments, ranks) and not command.is_module


@pytest.mark.parametrize(
    "words",
    ["python -m train --x", "torchrun -m train --x", "deepspeed --module train --x", "accelerate launch -m train --x"],
)
def test_a_module_is_run_as_one(words):
    command = parse(words.split())
    assert (command.program, command.arguments, command.is_module) == ("train", ("--x",), True)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("", "the command is missing"),
        ("mpirun -n 2 train.py", "'mpirun' is no launcher"),
        ("torchrun --nproc-per-node 2", "torchrun: the script is missing"),
        ("deepspeed --num_gpus many train.py", "--num_gpus many: a number is needed"),
    ],
)
def test_words_that_are_no_command_end_with_one_line(words, reason):
    with pytest.raises(CommandError, match=reason):
        parse(words.split())


def test_a_launcher_takes_all_gpus_unless_it_is_told_how_many():
    assert ranks_of_a_node(parse(["deepspeed", "train.py"]), 8) == 8
    assert ranks_of_a_node(parse(["torchrun", "--nproc-per-node=2", "train.py"]), 8) == 2
    assert ranks_of_a_node(parse(["python", "train.py"]), 8) == 1


def test_each_rank_gets_the_environment_of_its_launcher():
    command = parse(["torchrun", "--nnodes", "2", "--nproc-per-node", "4", "train.py"])
    variables = environment(command, rank=5, gpus=4)
    assert {name: variables[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")} == {
        "RANK": "5",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "8",
        "LOCAL_WORLD_SIZE": "4",
    }


def test_plain_python_gets_no_environment():
    assert environment(parse(["python", "train.py"]), rank=0, gpus=8) == {}


def test_options_of_accelerate_reach_the_rank_as_variables():
    words = "accelerate launch --use_deepspeed --zero_stage 3 --mixed_precision bf16 --num_processes 2 train.py"
    variables = environment(parse(words.split()), rank=0, gpus=2)
    assert variables["ACCELERATE_USE_DEEPSPEED"] == "true"
    assert variables["ACCELERATE_DEEPSPEED_ZERO_STAGE"] == "3"
    assert variables["ACCELERATE_MIXED_PRECISION"] == "bf16"
