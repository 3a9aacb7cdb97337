"""Ranks of a run that differ, and the traced rank that represents each rank."""

from memlab.core.plan import Plan


def traced_ranks(plan: Plan) -> list[int]:
    """Return the ranks to trace.

    Stages 0 and 3 need one rank. Without ZeRO all ranks hold the same; at stage 3 every rank holds ceil(n / ranks)
    elements of every parameter, padding included. Stages 1 and 2 need up to three ranks, because they cut the flattened
    parameters anywhere: the first rank owns the embedding, the last the head, and the norms and copies of whole
    parameters follow them.
    """
    if plan.deepspeed["zero_optimization"]["stage"] in (0, 3):
        return [0]
    last = plan.world_size - 1
    return sorted({0, plan.world_size // 2, last})


def stands_for(rank: int, traced: list[int]) -> int:
    """Return the traced rank that represents ``rank``: ``rank`` itself, else the middle or the only traced rank."""
    return rank if rank in traced else traced[len(traced) // 2]
