"""Single changes of a configuration that can save memory, composed with Hydra."""

import shlex

from memlab.cli.compose import compose_config
from memlab.cli.override_words import expand
from memlab.core.command_template import effect
from memlab.core.config import Config, to_dict
from memlab.core.errors import MemlabError
from memlab.core.plan import Plan, make_plan
from memlab.core.record import Record
from memlab.files.conf_files import overrides_of
from memlab.planner.reach import reach
from memlab.predict.limits import unpredictable

CHANGES = (
    ("allocator=expandable", "no extra computation"),
    ("checkpointing=full", "a second forward pass in each step"),
    ("zero_stage=zero1", "weights gathered after each step"),
    ("zero_stage=zero2", "gradients reduced to their owners"),
    ("zero_stage=zero3", "weights gathered in every pass"),
    ("zero_stage.reduce_bucket_size=50000000", "more and smaller reductions"),
    ("offload=optimizer", "an optimizer step on the CPU"),
    ("offload=all", "an optimizer step on the CPU, and weights over PCIe in every pass"),
    ("attention=sdpa", "no extra computation"),
    ("kernels=liger", "one more package"),
    ("precision=bf16", "computing in 16 bits"),
    ("adapter=lora", "training an adapter in place of all weights"),
    ("adapter=qlora", "training an adapter on weights of 4 bits"),
)
"""Single changes that can save memory, and what each costs."""

BATCH_WORDS = ("batch", "batch.micro")
"""Keys of the micro batch. The search for the largest batch sets it."""


def plan_of(given: dict[str, list[str]]) -> Plan:
    """Make the plan of words of one value each. Raises :class:`MemlabError` if it cannot be predicted."""
    config, choices = compose_config([*(words[0] for words in given.values()), "mode=predict"])
    if reasons := unpredictable(config):
        raise MemlabError("; ".join(reasons))
    return make_plan(config, choices)


def is_command(given: dict[str, list[str]]) -> bool:
    """Whether the words are of a command of the user's own."""
    return given.get("training") == ["training=command"]


def possible_changes(given: dict[str, list[str]], base: Plan) -> list[tuple[str, str, Plan]]:
    """List word, price and plan of every change that can be predicted and that can save memory."""
    micro = base.config.batch.micro
    possible = list(CHANGES)
    if micro > 1:
        possible.append((f"batch.micro={micro // 2}", "more steps, or batch.accumulation"))
    found = []
    for word, price in possible:
        replaced = BATCH_WORDS if word.startswith("batch") else word.split("=")[:1]
        rest = [words[0] for key, words in given.items() if key not in replaced]
        config, choices = compose_config([*rest, word, "mode=predict"])
        plan = make_plan(config, choices)
        is_other = effect(config) != effect(base.config) if is_command(given) else plan.run_id != base.run_id
        can_save = reach(base.config, config) and not _is_step_back(plan, base)
        if is_other and can_save and not unpredictable(config):
            found.append((word, price, plan))
    return found


def _is_step_back(plan: Plan, base: Plan) -> bool:
    """Whether ``plan`` shards or offloads less than ``base``."""

    def extent(config: Config) -> tuple[int, bool, bool]:
        return config.zero_stage.stage, config.offload.optimizer != "none", config.offload.param != "none"

    return any(new < old for new, old in zip(extent(plan.config), extent(base.config), strict=True))


def changes_of_record(record: Record) -> tuple[Plan, list[tuple[str, str, Plan]]]:
    """Return the plan that predicts a run of memlab's own training, and its possible changes.

    Raises :class:`MemlabError` if it cannot be predicted.
    """
    words = [word for line in overrides_of(record.choices, to_dict(record.config)) for word in shlex.split(line)]
    given = expand(words)
    base = plan_of(given)
    return base, possible_changes(given, base)
