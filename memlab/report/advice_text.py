"""Terminal output of advice."""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import count

from rich.console import Console

from memlab.analyse.advise import Advice, Projection, how_to_train
from memlab.analyse.run_view import is_command
from memlab.core.basis import comparable
from memlab.report import units
from memlab.report.short_names import names_by_label
from memlab.report.speed_text import hourly, whole_machine
from memlab.report.text import SHOWN, say, show_command, show_items


def show_advice(advice: Advice, out: Console) -> None:
    """Print the recommendation, the ranking, the excluded runs, and the command with its DeepSpeed JSON."""
    names, usual = _names(advice)
    first, *rest = sentences(advice)
    say(first, out, "bold")
    for sentence in rest:
        say(sentence, out)
    shown = advice.projections[:SHOWN]
    places = units.places(each.headroom_bytes for each in shown)
    numbers = count(1)
    cells: dict[str, Callable[[Projection], object]] = {
        "#": lambda _: next(numbers),
        "configuration": lambda each: names[each.label],
        "source": lambda each: each.run.source,
        "batch": lambda each: each.micro,
        "accumulation": lambda each: each.accumulation,
        "effective": lambda each: each.effective_batch,
        "time": lambda each: units.duration_of(each.seconds, each.basis),
        "cost": lambda each: "-" if each.usd is None else units.usd_of(each.usd, each.basis),
        "headroom GiB": lambda each: units.gib(each.headroom_bytes, places),
        "caution": lambda each: "; ".join(each.cautions),
    }
    spare = ("source", "effective", "accumulation", "headroom GiB")
    bounds = not all(comparable(each.basis) for each in advice.projections)
    title = f"{len(advice.projections):,} ways, {'by known time, then by free memory' if bounds else 'fastest first'}"
    title += f"; unless named: {usual}" if usual else ""
    common = ("source", "batch", "accumulation", "effective")
    show_items(out, title, shown, cells, left=3, notes=1, common=common, spare=spare)
    for reason, excluded in Counter(reason for _, reason in advice.excluded).items():
        say(f"Excluded {excluded} run{'s' * (excluded != 1)}: {reason}.", out)
    for sentence in advice.next:
        say(f"Measure next {sentence}", out)
    out.print()
    if is_command(advice.best.run):
        say(f"The command that was {advice.best.run.source}; set the batch and the accumulation in it:", out)
    words, deepspeed = how_to_train(advice.best)
    show_command(words, out)
    out.print()
    out.print(json.dumps(deepspeed, indent=2), soft_wrap=True)


def _names(advice: Advice) -> tuple[dict[str, str], str]:
    return names_by_label({each.label: each.run for each in advice.projections})


def sentences(advice: Advice) -> list[str]:
    """Write the advice: the best projection, its free memory, the next best, the price of machines that are rented
    whole, and a note if there are several models."""
    best, training = advice.best, advice.training
    names, _ = _names(advice)
    samples = f"{training.samples * training.epochs:,.0f} samples of {training.tokens:,} tokens"
    cost = "" if best.usd is None else f" and cost {units.usd_of(best.usd, best.basis)}"
    first = (
        f"Use {names[best.label]} with batch {best.micro} x {best.accumulation} accumulation: {samples} "
        f"take {units.duration_of(best.seconds, best.basis)}{cost}."
    )
    known = _against(advice, best, names) if comparable(best.basis) else _not_known(advice, best)
    listed = best.run.list_price if training.usd_per_gpu_hour is None else None
    of = f": the {listed}" if listed else ""
    price = [f"The price is {hourly(best.hardware)}{of}."] if listed or whole_machine(best.hardware) else []
    return [first, _room(best), known, *price, *_several_models(advice)]


def _not_known(advice: Advice, best: Projection) -> str:
    why = f" ({best.basis.reason})" if best.basis.reason else ""
    if len(advice.projections) == 1:
        return f"The time is a lower bound{why}."
    return f"Which way is the fastest is not known, since times are lower bounds{why}: this one leaves the most memory."


def _against(advice: Advice, best: Projection, names: Mapping[str, str]) -> str:
    others = [each for each in advice.projections if each.label != best.label and comparable(each.basis)]
    if not others:
        known = " with a known time" if any(each.label != best.label for each in advice.projections) else ""
        return f"No other configuration{known} can do this training."
    runner_up = others[0]
    words = f"The next configuration, {names[runner_up.label]} with batch {runner_up.micro}, takes "
    words += f"{units.duration(runner_up.seconds)} ({units.signed_percent(runner_up.seconds / best.seconds - 1)})"
    slowest = max(others, key=lambda each: each.seconds)
    if slowest is not runner_up:
        words += f", the slowest {units.duration(slowest.seconds)}"
    cheapest = advice.cheapest
    if cheapest is None or cheapest.label == best.label:
        return words + "."
    return words + f"; the cheapest is {names[cheapest.label]} at {units.usd(cheapest.usd)}."


def _several_models(advice: Advice) -> list[str]:
    """Warn that a smaller model is faster, and how to select one, if there are several models; else empty."""
    models = {each.run.choices.get("model") or each.run.config["model"]["path"] for each in advice.projections}
    if len(models) == 1:
        return []
    return [f"The runs have {len(models)} models, and a smaller model is faster: select one with --where model=NAME."]


def _room(best: Projection) -> str:
    source = "predicted, not measured" if best.run.source == "predicted" else "measured"
    free = best.headroom_bytes
    room = "unknown headroom" if free is None else f"{units.about(free)} GiB of each GPU free"
    caution = f", but {'; '.join(best.cautions)}" if best.cautions else ""
    return f"It leaves {room} ({source}){caution}."
