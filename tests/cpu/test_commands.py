"""``memlab measure`` around the scripts of tests/scripts, tiny, on CPU ranks, each started as its users start it."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from leftovers import segments_left

pytestmark = pytest.mark.cpu

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "tests" / "scripts"
LLAMA_PARAMETERS = 154_944  # of make_model_and_data.py --size tiny
STEPS = 2
STEP_PHASES = {"forward", "backward", "optimizer_step"}

TRAINER = f"--max_steps {STEPS} --logging_steps 1 --bf16 true --use_cpu true --report_to none --output_dir out"
EACH = "--per_device_train_batch_size 2"
TRL = f"--model_name_or_path models/llama {EACH} {TRAINER}"


@pytest.fixture(autouse=True)
def segments_are_removed():
    """DeepSpeed never removes its shared memory. What a command leaves is not memlab's, but fills the machine."""
    before = segments_left()
    yield
    for path in segments_left() - before:
        path.unlink(missing_ok=True)


def torchrun(words: str) -> str:
    return f"torchrun --standalone --nproc_per_node 2 {SCRIPTS}/{words}"


def deepspeed(words: str) -> str:
    return f"deepspeed --num_gpus 2 --master_port {{port}} {SCRIPTS}/{words}"


def accelerate(words: str) -> str:
    return f"accelerate launch --cpu --num_processes 1 --main_process_port {{port}} {SCRIPTS}/{words}"


def is_packed(record: dict) -> None:
    assert {row["tokens"] for row in record["steps"]["rows"]} == {2 * 64 * 2}


def is_of_equal_batches(record: dict) -> None:
    assert {(row["samples"], row["tokens"]) for row in record["steps"]["rows"]} == {(2 * 4, 2 * 4 * 64)}


def varies_in_length(record: dict) -> None:
    rows = record["steps"]["rows"]
    assert all(row["samples"] == 2 * 2 and row["longest_sample"] <= 512 for row in rows)
    assert all(row["real_tokens"] <= row["tokens"] for row in rows)
    assert any(row["real_tokens"] < row["tokens"] for row in rows)
    assert record["config"]["zero_stage"]["stage"] == 2


def has_an_adapter(record: dict) -> None:
    rank = record["ranks"][0]
    assert 0 < rank["trainable_parameters"] < rank["parameters"]
    assert record["config"]["adapter"]["method"] == "lora"


def has_a_reference_model(record: dict) -> None:
    """A sample is a pair of texts, as the script's batch size counts."""
    assert record["config"]["batch"]["micro"] == 2
    assert {row["samples"] for row in record["steps"]["rows"]} == {2 * 2}
    models = record["ranks"][0]["attached"]["models"]
    assert sorted((model["trained"], model["parameters"]) for model in models) == [
        (False, LLAMA_PARAMETERS),
        (True, LLAMA_PARAMETERS),
    ]


def tells_what_it_generated(record: dict) -> None:
    for row in record["steps"]["rows"]:
        assert row["samples"] == 2 and row["tokens"] == 2 * row["padded_length"] > 0


def is_stage(stage: int) -> Callable[[dict], None]:
    def check(record: dict) -> None:
        assert record["config"]["zero_stage"]["stage"] == stage

    return check


@dataclass(frozen=True)
class Case:
    """A command, the phases besides those of a step that rank 0 must have, and what else is true of the record."""

    words: str
    phases: frozenset[str] = frozenset()
    check: Callable[[dict], None] = lambda record: None
    ranks: int = 2


CASES = {
    "trainer": Case(
        torchrun(
            "trainer.py --model models/llama --dataset models/texts --max_length 64 --do_eval true "
            f"--eval_strategy steps --eval_steps 1 --save_strategy steps --save_steps 1 {EACH} {TRAINER}"
        ),
        frozenset({"evaluate", "save"}),
    ),
    "trl_sft": Case(
        deepspeed(f"trl_sft.py --dataset_name models/chat --deepspeed models/zero2.json --max_length 512 {TRL}"),
        frozenset({"engine_init"}),
        varies_in_length,
    ),
    "trl_sft_packed": Case(
        torchrun(f"trl_sft.py --dataset_name models/chat --packing true --max_length 64 {TRL}"), check=is_packed
    ),
    "trl_sft_lora": Case(
        accelerate(
            "trl_sft.py --dataset_name models/chat --use_peft true --lora_target_modules all-linear --max_length 64 "
            + TRL
        ),
        check=has_an_adapter,
        ranks=1,  # accelerate's launcher starts several CPU ranks through MPI alone
    ),
    "trl_dpo": Case(
        deepspeed(f"trl_dpo.py --dataset_name models/pairs --deepspeed models/zero2.json --max_length 64 {TRL}"),
        check=has_a_reference_model,
    ),
    "trl_grpo": Case(
        f"python {SCRIPTS}/trl_grpo.py --dataset_name models/prompts --max_completion_length 8 --num_generations 2 "
        + TRL,
        frozenset({"generate"}),
        tells_what_it_generated,
        ranks=1,
    ),
    "deepspeed_loop": Case(
        deepspeed(f"deepspeed_loop.py --stage 3 --accumulate 2 --steps {STEPS} --save out"),
        frozenset({"engine_init", "save"}),
        is_stage(3),
    ),
    "accelerate_loop": Case(
        torchrun(
            f"accelerate_loop.py --model models/llama --dataset models/texts --max_length 64 --steps {STEPS} "
            "--output_dir out"
        )
    ),
    "ddp": Case(torchrun(f"ddp.py --steps {STEPS} --accumulate 2 --save out.pt"), frozenset({"save"})),
    "fsdp2": Case(
        torchrun(f"fsdp2.py --model models/llama --steps {STEPS} --save out.pt"),
        frozenset({"save"}),
        is_of_equal_batches,
    ),
    "seq2seq": Case(
        torchrun(
            "seq2seq.py --model models/t5 --dataset models/translations --max_length 64 --do_eval true "
            f"--predict_with_generate true {EACH} {TRAINER}"
        ),
        frozenset({"evaluate", "generate"}),
    ),
    "vision": Case(
        torchrun(f"vision.py --model models/vit --dataset models/images --do_eval true {EACH} {TRAINER}"),
        frozenset({"evaluate"}),
    ),
}

CORE = {"deepspeed_loop"}


def run(words: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a program of this environment without the network, one thread a rank."""
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "HF_HOME": str(cwd / "hf"),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    return subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True, timeout=600)


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with models/, in which the commands run."""
    folder = tmp_path_factory.mktemp("commands")
    made = run([sys.executable, str(SCRIPTS / "make_model_and_data.py"), "models"], folder)
    assert made.returncode == 0, made.stderr
    return folder


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@pytest.mark.long(25)
@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.core] * (name in CORE)) for name in CASES])
def test_a_command_is_measured_as_it_is(workplace, name):
    case, folder = CASES[name], workplace / "runs" / name
    words = case.words.format(port=free_port()).split()
    done = run([sys.executable, "-m", "memlab", "measure", "--output", str(folder), "--", *words], workplace)
    assert done.returncode == 0, done.stdout + done.stderr

    record = json.loads((folder / "record.json").read_text())
    assert (record["status"], record["command"]["words"], record["command"]["exit_code"]) == ("ok", words, 0)
    assert len(record["ranks"]) == case.ranks
    for number, rank in enumerate(record["ranks"]):
        attached = rank["attached"]
        assert (attached["rank"], attached["ended"], attached["steps"]) == (number, "finished", STEPS)
        assert set(attached["phases"]) >= {f"first_{phase}" for phase in STEP_PHASES} | STEP_PHASES
        assert not attached["meter_errors"]
        rows = [json.loads(line) for line in (folder / f"rank{number}.steps.jsonl").read_text().splitlines()]
        assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
        assert all(row["seconds"] > 0 and row["host_peak_bytes"] > 0 for row in rows)
    phases = record["ranks"][0]["attached"]["phases"]
    assert {phase.removeprefix("first_") for phase in phases} >= case.phases
    script = next(Path(word).name for word in words if word.endswith(".py"))
    assert script in phases["backward"]["where"]
    case.check(record)


FAILS_IN_SET_UP = """
import os, time
import torch
from transformers import Trainer, TrainingArguments
arguments = TrainingArguments(output_dir="out", use_cpu=True, eval_strategy="steps", eval_steps=1, report_to=[])
if os.environ["RANK"] == "0":
    while not os.path.exists("run/rank1.json"):
        time.sleep(0.01)
    raise RuntimeError("rank 1 had failed before")
Trainer(torch.nn.Linear(2, 2), arguments, train_dataset=[{"x": 1}])
"""


@pytest.mark.long(15)
def test_the_reason_is_the_exception_of_the_rank_that_failed_first(tmp_path):
    (tmp_path / "train.py").write_text(FAILS_IN_SET_UP)
    command = f"deepspeed --num_gpus 2 --master_port {free_port()} train.py".split()
    done = run([sys.executable, "-m", "memlab", "measure", "--output", "run", "--", *command], tmp_path)
    assert done.returncode != 0
    record = json.loads((tmp_path / "run" / "record.json").read_text())
    assert record["status"] == "failed"
    assert record["reason"].startswith("rank 1 at train.py:10: ValueError: You have set `args.eval_strategy`")
