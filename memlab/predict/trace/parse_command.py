"""A training command in the words that a person types: the launcher, its ranks, and the script that each rank runs."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import memlab
from memlab.core.errors import MemlabError
from memlab.predict.trace.shadow_process import ShadowError, last_exception
from memlab.predict.trace.trace_format import Trace


class CommandError(MemlabError):
    """The words are no training command that memlab understands."""


@dataclass(frozen=True)
class Command:
    """Program of the ranks of a command. ``launcher``: "deepspeed", "torchrun", "accelerate" or "python", which is one
    rank without the variables of a launcher. ``ranks``: their number, ``None`` where the launcher takes all GPUs.
    ``environment``: variables that the launcher sets for its own options."""

    launcher: str
    program: str
    arguments: tuple[str, ...] = ()
    is_module: bool = False
    ranks: int | None = None
    nodes: int = 1
    environment: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Node:
    """The GPUs of each node: their name, their number and the memory of each."""

    gpu: str
    gpus: int
    memory_bytes: int


@dataclass(frozen=True)
class RankRequest:
    """One rank to run on simulated GPUs.

    ``folder`` receives the files of memlab's meters (memlab.attach), ``trace`` is the file of the trace. ``steps``: end
    after this many optimizer steps.
    """

    program: str
    arguments: list[str]
    is_module: bool
    rank: int
    local_rank: int
    world_size: int
    node: Node
    folder: str
    trace: str
    steps: int | None = None

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> "RankRequest":
        values = json.loads(path.read_text(encoding="utf-8"))
        return cls(**{**values, "node": Node(**values["node"])})


_FLAGS = {
    "deepspeed": {
        *(
            "--no_python",
            "--no_local_rank",
            "--enable_each_rank_log",
            "--no_ssh",
            "--bind_cores_to_core",
            "--force_multi",
        ),
        *("--save_pid", "--module", "-m"),
    },
    "torchrun": {"--standalone", "-m", "--module", "--no-python", "--no_python", "--run-path", "--run_path"},
    "accelerate": {
        *(
            "--multi_gpu",
            "--multi-gpu",
            "--use_deepspeed",
            "--use-deepspeed",
            "--use_fsdp",
            "--use-fsdp",
            "-m",
            "--module",
        ),
        *("--no_python", "--no-python", "-q", "--quiet", "--debug", "--same_network", "--cpu", "--dynamo_use_dynamic"),
    },
}
"""Options of the launchers that take no value."""

_COUNT = {
    "deepspeed": ("--num_gpus",),
    "torchrun": ("--nproc-per-node", "--nproc_per_node"),
    "accelerate": ("--num_processes", "--num-processes"),
}
_NODES = {"deepspeed": ("--num_nodes",), "torchrun": ("--nnodes",), "accelerate": ("--num_machines", "--num-machines")}


def parse(words: Sequence[str]) -> Command:
    """Read the words of a command. Raises :class:`CommandError` where they are not understood."""
    if not words:
        raise CommandError("memlab predict -- COMMAND: the command is missing. Example: torchrun train.py --batch 4")
    name, rest = os.path.basename(words[0]), list(words[1:])
    if name.startswith("python"):
        return _python(rest)
    if name == "deepspeed":
        return _launched("deepspeed", rest)
    if name == "torchrun":
        return _launched("torchrun", rest)
    if name == "accelerate" and rest[:1] == ["launch"]:
        return _launched("accelerate", rest[1:])
    known = "python, deepspeed, torchrun, accelerate launch"
    raise CommandError(f"'{words[0]}' is no launcher that memlab understands. It understands: {known}.")


def _python(words: list[str]) -> Command:
    while words and words[0].startswith("-") and words[0] != "-m":
        words = words[1:] if words[0] not in ("-X", "-W") else words[2:]
    if words[:1] != ["-m"]:
        return Command("python", _program("python", words), tuple(words[1:]))
    launchers = {
        "torch.distributed.run": "torchrun",
        "torch.distributed.launch": "torchrun",
        "accelerate.commands.launch": "accelerate",
        "deepspeed.launcher.runner": "deepspeed",
    }
    module = _program("python -m", words[1:])
    if module in launchers:
        return _launched(launchers[module], words[2:])
    return Command("python", module, tuple(words[2:]), is_module=True)


def _launched(launcher: str, words: list[str]) -> Command:
    options: dict[str, str] = {}
    index = 0
    while index < len(words) and words[index].startswith("-"):
        name, separator, value = words[index].partition("=")
        if separator:
            options[name] = value
        elif name in _FLAGS[launcher]:
            options[name] = ""
        else:
            index += 1
            options[name] = words[index] if index < len(words) else ""
        index += 1
    program = _program(launcher, words[index:])
    return Command(
        launcher,
        program,
        tuple(words[index + 1 :]),
        is_module="-m" in options or "--module" in options,
        ranks=_number(launcher, options, _COUNT[launcher]),
        nodes=_number(launcher, options, _NODES[launcher]) or 1,
        environment=tuple(_accelerate(options).items()) if launcher == "accelerate" else (),
    )


def _program(launcher: str, words: Sequence[str]) -> str:
    if not words:
        raise CommandError(f"{launcher}: the script is missing.")
    return words[0]


def _number(launcher: str, options: Mapping[str, str], names: Sequence[str]) -> int | None:
    given = next((options[name] for name in names if name in options), None)
    if given is None or given in ("gpu", "auto", "-1"):
        return None
    try:
        return int(given.rpartition(":")[2])
    except ValueError:
        raise CommandError(f"{launcher} {names[0]} {given}: a number is needed.") from None


def _accelerate(options: Mapping[str, str]) -> dict[str, str]:
    """The variables by which ``accelerate launch`` passes its options on: ``accelerate/utils/launch.py``."""
    plain = {name.replace("-", "_").lstrip("_"): value for name, value in options.items()}
    found = {}
    if "mixed_precision" in plain:
        found["ACCELERATE_MIXED_PRECISION"] = plain["mixed_precision"]
    if "gradient_accumulation_steps" in plain:
        found["ACCELERATE_GRADIENT_ACCUMULATION_STEPS"] = plain["gradient_accumulation_steps"]
    if "use_deepspeed" in plain:
        found["ACCELERATE_USE_DEEPSPEED"] = "true"
        names = {
            "zero_stage": "ACCELERATE_DEEPSPEED_ZERO_STAGE",
            "deepspeed_config_file": "ACCELERATE_DEEPSPEED_CONFIG_FILE",
            "offload_optimizer_device": "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE",
            "offload_param_device": "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE",
            "gradient_clipping": "ACCELERATE_GRADIENT_CLIPPING",
        }
        found |= {variable: plain[name] for name, variable in names.items() if name in plain}
    if "use_fsdp" in plain:
        found["ACCELERATE_USE_FSDP"] = "true"
        found |= {name.upper(): value for name, value in plain.items() if name.startswith("fsdp_")}
    return found


def trace_rank(
    command: Command, rank: int, node: Node, folder: Path, steps: int | None, environ: Mapping[str, str]
) -> Trace:
    """Run one rank of a command in a process of its own, which writes its output, its rank file and its trace into
    ``folder``. ``steps``: end after this many optimizer steps. ``environ``: the variables that the command would get.

    Raises :class:`ShadowError` with the exception that ended the script.
    """
    here = ranks_of_a_node(command, node.gpus)
    trace, log = folder / f"rank{rank}.trace.json", folder / f"rank{rank}.log"
    request = RankRequest(
        command.program,
        list(command.arguments),
        command.is_module,
        rank,
        rank % here,
        here * command.nodes,
        node,
        str(folder),
        str(trace),
        steps,
    )
    request.save(folder / f"rank{rank}.json")
    words = [sys.executable, "-m", "memlab.predict.trace.shadow.script", str(folder / f"rank{rank}.json")]
    with log.open("wb") as output:
        variables = {**environ, **_without_gpus(), **environment(command, rank, node.gpus)}
        done = subprocess.run(words, stdout=output, stderr=subprocess.STDOUT, env=variables)
    if done.returncode or not trace.exists():
        raise ShadowError(last_exception(log))
    return Trace.load(trace)


def _without_gpus() -> dict[str, str]:
    """Variables of every rank: real GPUs are hidden, and nothing is downloaded or uploaded."""
    return {
        "CUDA_VISIBLE_DEVICES": "",
        "DS_ACCELERATOR": "cuda",
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "WANDB_MODE": "offline",
        "PYTHONPATH": os.pathsep.join(
            filter(None, [str(Path(memlab.__file__).parents[1]), os.environ.get("PYTHONPATH")])
        ),
    }


def environment(command: Command, rank: int, gpus: int) -> dict[str, str]:
    """The environment variables that the launcher gives to a rank on nodes of ``gpus`` GPUs."""
    if command.launcher == "python":
        return {}
    here = ranks_of_a_node(command, gpus)
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank % here),
        "WORLD_SIZE": str(here * command.nodes),
        "LOCAL_WORLD_SIZE": str(here),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",  # is never opened
        **dict(command.environment),
    }


def ranks_of_a_node(command: Command, gpus: int) -> int:
    """The number of ranks on each node of ``gpus`` GPUs."""
    if command.launcher == "python":
        return 1
    total = command.ranks or gpus
    return max(1, total // command.nodes) if command.launcher == "accelerate" and command.ranks else total
