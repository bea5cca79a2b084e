"""Reports: measurements as JSON and as Markdown."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.bars import NOT_MEASURED, Verdict, judge
from benchmarks.measurement import OTHERS, Measurement, Taken
from benchmarks.summary import CALM_CORES, Summary, by_system, summaries

#: The names of fields of a `Summary` in the file, where they differ.
_SHORT = {"least": "min", "most": "max"}


def as_json(head: Mapping[str, Any], taken: Sequence[Taken]) -> dict[str, Any]:
    """The full results as JSON, including every repetition."""
    found = summaries(taken)
    return {
        "format": 1,
        **head,
        "measurements": [
            {"case": each.case, "round": each.round, **asdict(each.measurement)} for each in taken
        ],
        "summary": [
            {_SHORT.get(name, name): value for name, value in asdict(summary).items()}
            for summary in found
        ],
        "bars": [
            {
                "bar": verdict.bar.name,
                "sense": verdict.bar.sense,
                "bound": verdict.bar.bound,
                "measured": verdict.measured,
                "met": verdict.met,
                "reason": verdict.reason,
            }
            for verdict in judge(found)
        ],
    }


def read(path: Path) -> tuple[dict[str, Any], list[Taken]]:
    """Read the output of `as_json`: its head, and every repetition.

    :raises ValueError: the file was not written by this version.
    """
    found = json.loads(path.read_text())
    if not isinstance(found, dict) or found.get("format") != 1:
        raise ValueError(f"{path} was not written by this version of benchmarks.run")
    taken = [
        Taken(
            case=entry.pop("case"),
            round=entry.pop("round"),
            measurement=Measurement(**entry),
        )
        for entry in found.pop("measurements")
    ]
    return found, taken


def conditions(head: Mapping[str, Any]) -> str:
    """The machine and versions of a run, in one line."""
    machine, versions = head["machine"], head["versions"]
    return (
        f"{machine['cores']} cores ({machine['cpu']}), {machine['memory_gb']} GB, "
        f"{machine['system']}; "
        + ", ".join(f"{name} {number}" for name, number in versions.items())
    )


def as_markdown(head: Mapping[str, Any], taken: Sequence[Taken]) -> str:
    """The conditions of a run, a table for each case, and the bars."""
    settings = ", ".join(f"{name}={value}" for name, value in head["settings"].items())
    lines = [
        conditions(head),
        "",
        f"Commit {head['commit'] or 'unknown'}. Server: {settings}.",
    ]
    found = summaries(taken)
    for case in dict.fromkeys(summary.case for summary in found):
        rows = [summary for summary in found if summary.case == case]
        lines += ["", f"### {case}", "", *_table(rows), *_notes(rows)]
    if not all(summary.calm for summary in found):
        lines += ["", f"\\* others used more than {CALM_CORES:g} cores in every round."]
    lines += ["", "### bars", "", *bars_table(judge(found))]
    return "\n".join(lines)


def _table(found: Sequence[Summary]) -> Iterable[str]:
    """A table grouped by system, with a column for the system if there are several."""
    grouped = by_system(found)
    rows = [row for group in grouped.values() for row in group]
    ratios = list(dict.fromkeys(title for row in rows for title in row.ratios))
    details = list(dict.fromkeys(title for row in rows for title in row.details))
    details.sort(key=lambda title: title == OTHERS)  # last; the others keep their order
    several = len(grouped) > 1
    titles = ["figure", *(["system"] if several else []), "unit", "median", "min–max"]
    yield f"| {' | '.join([*titles, *(f'/ {title}' for title in ratios), *details])} |"
    yield "|" + "---|" * (len(titles) + len(ratios) + len(details))
    for row in rows:
        cells = [
            row.figure,
            *([row.system] if several else []),
            row.unit or "–",
            "–" if row.missing else number(row.median) + ("" if row.calm else "\\*"),
            f"{number(row.least)}–{number(row.most)}" if row.rounds > 1 else "–",
            *(f"{row.ratios[title]:.2f}" if title in row.ratios else "–" for title in ratios),
            *(number(row.details[title]) if title in row.details else "–" for title in details),
        ]
        yield f"| {' | '.join(cells)} |"


def _notes(rows: Sequence[Summary]) -> Iterable[str]:
    """The notes of the systems, once for each."""
    notes = dict.fromkeys((row.system, row.note) for row in rows if row.note)
    if notes:
        yield ""
        yield from (f"- {system}: {note}" for system, note in notes)


def bars_table(verdicts: Sequence[Verdict]) -> Iterable[str]:
    """A table of the judged bars, and the number of bars whose case did not run."""
    yield "| bar | wanted | measured | |"
    yield "|---|---|---|---|"
    judged = [verdict for verdict in verdicts if verdict.reason != NOT_MEASURED]
    for verdict in judged:
        met = verdict.reason if verdict.met is None else "met" if verdict.met else "**not met**"
        measured = "–" if verdict.measured is None else precise(verdict.measured)
        if verdict.met is False and measured == precise(verdict.bar.bound):
            measured = f"{verdict.measured:.4f}"  # missed by less than two decimals show
        wanted = f"{'≥' if verdict.bar.sense == 'at least' else '≤'} {verdict.bar.bound:g}"
        yield f"| {verdict.bar.name} | {wanted} | {measured} | {met} |"
    if len(judged) < len(verdicts):
        yield ""
        yield f"{len(verdicts) - len(judged)} more bars are of cases that this run did not measure."


def number(value: float) -> str:
    """A number with three significant digits."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def precise(value: float) -> str:
    """As `number`, but with two decimals below 100."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}"
