"""Text of docs/accuracy.md: errors of the predictions as tables. Long texts are in Markdown files beside this one."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from memlab.core.grouping import grouped
from memlab.core.record import COMMAND_PHASES
from memlab.core.sizes import MIB
from memlab.prediction.memory.fit_probability import FEW
from memlab.report import units
from memlab.simulator.constants import HOST_PROCESS_BYTES
from tools.accuracy.commands import PEAKS, JudgedCommand
from tools.accuracy.errors import GROUPS, MARGIN, QUANTITIES, Compared, Errors, Judged, cell, errors_of, verdicts_of


def document(
    points: Sequence[Judged],
    commands: Sequence[JudgedCommand],
    predictor: dict[str, str],
    refused: Sequence[tuple[str, str]],
    imported: Sequence[Judged],
    kinds: Mapping[str, Mapping[str, int]],
    note: str = "",
) -> str:
    """Write the whole page as Markdown.

    ``commands``: training commands, in a section of their own. ``predictor``: package -> version. ``refused``: runs
    that could not be predicted, with the reason. ``imported``: points of imported tables, in a section of their own.
    ``kinds``: GPU -> kind of configuration -> number of measured engine configurations. ``note``: a remark on the
    sweeps.
    """
    return "\n".join(
        [
            _section("meaning.md", margin=units.percent(MARGIN), **predictor),
            *(_own_training(points, refused, kinds) if points else []),
            *(_commands(commands) if commands else []),
            *([*_by_sweep(points, note), *_by_family(points)] if points else []),
            _section("sources.md", host_process=f"{HOST_PROCESS_BYTES // MIB:,} MiB"),
            *(_imported(imported) if imported else []),
        ]
    )


def _own_training(
    points: Sequence[Judged], refused: Sequence[tuple[str, str]], kinds: Mapping[str, Mapping[str, int]]
) -> list[str]:
    return [
        _introduction(points),
        "![Predicted against measured](accuracy/predicted_against_measured.png)\n",
        "## All points\n",
        _table("quantity", [(name, errors_of(points, quantity)) for quantity, name in QUANTITIES.items()]),
        _verdicts(points),
        _refused(refused),
        _kinds(kinds),
    ]


def _introduction(points: Sequence[Judged]) -> str:
    sweeps = sorted({point.sweep for point in points})
    names = ", ".join(f"`{sweep}`" for sweep in sweeps)
    return _section(
        "introduction.md", points=len(points), sweeps=len(sweeps), versions=_versions_of(points), names=names
    )


def _versions_of(points: Sequence[Judged]) -> str:
    found = {" ".join(f"{name} {version}" for name, version in point.versions.items()) for point in points}
    return "; ".join(sorted(found))


def _verdicts(points: Sequence[Compared]) -> str:
    found = verdicts_of(points)
    return (
        f"Verdict (runs or out of memory): right for {found.right} of {found.n} points "
        f"({units.percent(found.right / found.n, 1)}); "
        f"{found.out_of_memory} of them ran out of memory, {found.edge} were predicted to be at the edge.\n"
    )


def _refused(refused: Sequence[tuple[str, str]]) -> str:
    lines = [f"- `{where}`: {reason}" for where, reason in refused]
    return "\n".join(["Not predicted:\n", *lines]) + "\n" if lines else ""


def _kinds(kinds: Mapping[str, Mapping[str, int]]) -> str:
    rows = [
        (gpu, kind, str(count), "yes" if count >= FEW else "no")
        for gpu, counts in kinds.items()
        for kind, count in sorted(counts.items(), key=lambda item: -item[1])
    ]
    head = ("GPU", "kind of configuration", "measured", "probability shown")
    return f"{_section('probabilities.md', few=FEW)}\n{_markdown(head, rows)}"


def _commands(commands: Sequence[JudgedCommand]) -> list[str]:
    """Write the section of training commands: errors over all, and one table for each sweep."""
    measured = _versions(each.versions for each in commands)
    predicted = _versions(each.predictor for each in commands)
    sweeps = sorted(grouped(commands, lambda command: command.sweep).items())
    rows = [row for sweep in sweeps for quantity in PEAKS for row in _error_rows([sweep], quantity)]
    by_phase = [(phase.replace("_", " "), _in_phase(commands, phase)) for phase in COMMAND_PHASES]
    return [
        _section("commands.md", measured=measured, predicted=predicted),
        _table("sweep", rows),
        _verdicts(commands),
        *(_table("phase", _error_rows(by_phase, quantity)) for quantity in PEAKS),
        *(_commands_of(sweep, some) for sweep, some in sweeps),
    ]


def _versions(found: Iterable[Mapping[str, str]]) -> str:
    return ", ".join(dict.fromkeys(f"{name} {version}" for each in found for name, version in each.items() if version))


def _in_phase(commands: Sequence[JudgedCommand], phase: str) -> list[JudgedCommand]:
    """Return the commands that have a phase, each with the errors of the phase."""
    return [replace(each, errors=each.phases[phase]) for each in commands if phase in each.phases]


def _error_rows(groups: Iterable[tuple[str, Sequence[Compared]]], quantity: str) -> list[tuple[str, Errors | None]]:
    """Return the rows of a table of errors: one for each group, a name and its points."""
    return [(f"{name}: {QUANTITIES[quantity]}", errors_of(some, quantity)) for name, some in groups]


def _commands_of(sweep: str, commands: Sequence[JudgedCommand]) -> str:
    of_quantities = (part for name in PEAKS for part in (f"{name}, GiB", "error", "first"))
    rows = []
    for each in sorted(commands, key=lambda command: command.name):
        cells = [each.name, str(each.gpus), each.measured, each.predicted]
        for quantity in PEAKS:
            cells += [units.gib(each.measured_bytes[quantity], 2), _error(each.errors.get(quantity))]
            cells.append("" if each.first is None else _first(each.first, quantity))
        rows.append([*cells, _worst_phase(each)])
    return _markdown((sweep, "GPUs", "measured", "predicted", *of_quantities, "worst phase"), rows)


def _first(first: JudgedCommand, quantity: str) -> str:
    return _error(first.errors[quantity]) if quantity in first.errors else first.predicted


def _worst_phase(command: JudgedCommand) -> str:
    if not (errors := {phase: each["allocated"] for phase, each in command.phases.items() if "allocated" in each}):
        return "-"
    worst = max(errors, key=lambda phase: abs(errors[phase]))
    return f"{worst.replace('_', ' ')} {_error(errors[worst])}"


def _error(error: float | None) -> str:
    return "-" if error is None else units.with_sign(error, units.percent(abs(error), 2))


def _by_sweep(points: Sequence[Judged], note: str) -> list[str]:
    sweeps = sorted(grouped(points, lambda point: point.sweep).items())
    tables = (_table("sweep", _error_rows(sweeps, quantity)) for quantity in PEAKS)
    verdicts = [
        (name, str(each.n), str(each.out_of_memory), units.percent(each.right / each.n, 1))
        for name, each in ((name, verdicts_of(some)) for name, some in sweeps)
    ]
    return ["## By sweep\n", note, *tables, _markdown(("sweep", "points", "out of memory", "verdict right"), verdicts)]


def _by_family(points: Sequence[Judged]) -> list[str]:
    by_axis = (
        f"## {QUANTITIES[quantity].capitalize()}, by what was varied\n\n{_table('points', _by_axis(points, quantity))}"
        for quantity in ("allocated", "reserved", "after_init")
    )
    cells = [(" ".join(words), errors_of(some, "reserved")) for words, some in sorted(grouped(points, cell).items())]
    return [*by_axis, "## Peak reserved, by cell\n", _table("cell", cells)]


def _option(axis: str, point: Judged) -> str:
    return {**point.choices, "GPUs": str(point.gpus), "launch": point.isolation}[axis]


def _by_axis(points: Sequence[Judged], quantity: str) -> list[tuple[str, Errors | None]]:
    rows = []
    for axis in (*GROUPS, "GPUs", "launch"):
        if len(options := grouped(points, partial(_option, axis))) > 1:
            rows += [(f"{axis}: {option}", errors_of(some, quantity)) for option, some in sorted(options.items())]
    return rows


def _imported(points: Sequence[Judged]) -> list[str]:
    """Write the section on an imported study, measured with other versions: errors by series."""
    parts = [_section("study.md", versions=_versions_of(points))]
    series = [*sorted(grouped(points, lambda point: point.sweep).items()), ("all", points)]
    for quantity in ("active", "reserved"):
        rows = [(name, errors_of(some, quantity)) for name, some in series]
        parts += [f"{QUANTITIES[quantity].capitalize()}:\n", _table("series", rows)]
    return [*parts, _verdicts(points)]


def _table(first: str, rows: Sequence[tuple[str, Errors | None]]) -> str:
    head = (first, "n", "median", "90th percentile", "worst", "under", f"under {units.percent(MARGIN)}")
    cells = [
        (
            name,
            str(errors.n),
            *(units.percent(share, 2) for share in (errors.median, errors.percentile_90)),
            _error(errors.worst),
            *map(units.percent, (errors.under, errors.under_by_margin)),
        )
        for name, errors in rows
        if errors is not None
    ]
    return _markdown(head, cells)


def _section(name: str, **values: object) -> str:
    """Read the text of a section, a file beside this one, and put the values in place of their names in braces."""
    return Path(__file__).with_name(name).read_text(encoding="utf-8").format(**values)


def _markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a table."""
    first, *others = (f"| {' | '.join(cells)} |" for cells in (head, *rows))
    return "\n".join([first, f"|{'---|' * len(head)}", *others]) + "\n"
