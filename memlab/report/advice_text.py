"""Advice in a terminal."""

import json

from rich.console import Console

from memlab.analyse.advise import Advice, Candidate, command_line, deepspeed_of
from memlab.report import units
from memlab.report.text import SHOWN, grid
from memlab.terminal import safe


def show_advice(advice: Advice, out: Console) -> None:
    """The recommendation, the ranking, what was left out, and what to run."""
    out.print(recommendation(advice), soft_wrap=True)
    rows = [
        (
            rank,
            each.label,
            each.run.source,
            each.micro,
            each.accumulation,
            each.effective_batch,
            units.duration(each.seconds),
            units.usd(each.usd),
            units.gib(each.headroom_bytes),
            "; ".join(each.cautions),
        )
        for rank, each in enumerate(advice.candidates[:SHOWN], 1)
    ]
    columns = [
        "",
        "configuration",
        "source",
        "batch",
        "accumulation",
        "effective",
        "time",
        "cost",
        "headroom GiB",
        "caution",
    ]
    out.print(grid(f"{len(advice.candidates):,} ways, fastest first", columns, rows, 3))
    reasons = [reason for _, reason in advice.excluded]
    for reason in dict.fromkeys(reasons):
        out.print(f"left out: {reasons.count(reason)} x {safe(reason)}", soft_wrap=True)
    for sentence in advice.next:
        out.print(f"measure next: {safe(sentence)}", soft_wrap=True)
    out.print(f"\n{safe(command_line(advice.best))}\n", soft_wrap=True)
    out.print(json.dumps(deepspeed_of(advice.best), indent=2), soft_wrap=True)


def recommendation(advice: Advice) -> str:
    """Which to use and why, in three sentences."""
    best, job = advice.best, advice.job
    samples = f"{job.samples * job.epochs:,.0f} samples of {job.tokens:,} tokens"
    cost = "" if best.usd is None else f" and cost {units.usd(best.usd)}"
    first = (
        f"Use {safe(best.label)} with batch {best.micro} x {best.accumulation} accumulation: {samples} "
        f"take {best.seconds:,.0f} s ({units.duration(best.seconds)}){cost}."
    )
    return f"{first} {_against(advice, best)} {_room(best)}"


def _against(advice: Advice, best: Candidate) -> str:
    others = [each for each in advice.candidates if each.label != best.label]
    if not others:
        return "No other configuration can do it."
    runner_up = others[0]
    words = f"The next configuration, {safe(runner_up.label)} with batch {runner_up.micro}, takes "
    words += f"{runner_up.seconds:,.0f} s ({units.percent(runner_up.seconds / best.seconds - 1)})"
    slowest = max(others, key=lambda each: each.seconds)
    if slowest is not runner_up:
        words += f", the slowest {slowest.seconds:,.0f} s"
    cheapest = advice.cheapest
    if cheapest is None or cheapest.label == best.label:
        return words + "."
    return words + f"; the cheapest is {safe(cheapest.label)} at {units.usd(cheapest.usd)}."


def _room(best: Candidate) -> str:
    source = "predicted, not measured" if best.run.source == "predicted" else "measured"
    room = (
        "unknown headroom" if best.headroom_bytes is None else f"{units.gib(best.headroom_bytes)} GiB of each GPU free"
    )
    caution = f", but {'; '.join(best.cautions)}" if best.cautions else ""
    return f"It leaves {room} ({source}){caution}."
