"""Measurements as JSON and as Markdown."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.bars import NOT_MEASURED, Verdict, judge
from benchmarks.measurement import OTHERS, Measurement, Taken
from benchmarks.summary import CALM_CORES, Summary, by_system, summaries


def as_json(head: Mapping[str, Any], taken: Sequence[Taken]) -> dict[str, Any]:
    """Everything, every repetition included."""
    found = summaries(taken)
    return {
        "format": 1,
        **head,
        "measurements": [
            {"case": one.case, "round": one.round, **asdict(one.measurement)} for one in taken
        ],
        "summary": [
            {
                "case": one.case,
                "system": one.system,
                "figure": one.figure,
                "unit": one.unit,
                "rounds": one.rounds,
                "median": one.median,
                "min": one.least,
                "max": one.most,
                "ratios": dict(one.ratios),
                "details": dict(one.details),
                "calm": one.calm,
                "note": one.note,
                "missing": one.missing,
            }
            for one in found
        ],
        "bars": [
            {
                "bar": one.bar.name,
                "sense": one.bar.sense,
                "bound": one.bar.bound,
                "measured": one.measured,
                "met": one.met,
                "reason": one.reason,
            }
            for one in judge(found)
        ],
    }


def read(path: Path) -> tuple[dict[str, Any], list[Taken]]:
    """What `as_json` made: its head, and every repetition.

    :raises ValueError: it is not the output of this version.
    """
    found = json.loads(path.read_text())
    if not isinstance(found, dict) or found.get("format") != 1:
        raise ValueError(f"{path} was not written by this version of benchmarks.run")
    taken = [
        Taken(
            case=one.pop("case"),
            round=one.pop("round"),
            measurement=Measurement(**one),
        )
        for one in found.pop("measurements")
    ]
    return found, taken


def conditions(head: Mapping[str, Any]) -> str:
    """What the run ran on, in one line."""
    machine, versions = head["machine"], head["versions"]
    return (
        f"{machine['cores']} cores ({machine['cpu']}), {machine['memory_gb']} GB, "
        f"{machine['system']}; " + ", ".join(f"{name} {at}" for name, at in versions.items())
    )


def as_markdown(head: Mapping[str, Any], taken: Sequence[Taken]) -> str:
    """What the run ran on, a table for each case, and which bars are met."""
    settings = ", ".join(f"{name}={value}" for name, value in head["settings"].items())
    lines = [
        conditions(head),
        "",
        f"Commit {head['commit'] or 'unknown'}. Server: {settings}.",
    ]
    found = summaries(taken)
    for case in dict.fromkeys(one.case for one in found):
        rows = [one for one in found if one.case == case]
        lines += ["", f"### {case}", "", *_table(rows), *_notes(rows)]
    if not all(one.calm for one in found):
        lines += ["", f"\\* others used more than {CALM_CORES:g} cores in every round."]
    lines += ["", "### bars", "", *bars_table(judge(found))]
    return "\n".join(lines)


def _table(found: Sequence[Summary]) -> Iterable[str]:
    """The rows of each system together; what they are of is said if it is more than one."""
    grouped = by_system(found)
    rows = [one for of_one in grouped.values() for one in of_one]
    ratios = list(dict.fromkeys(title for one in rows for title in one.ratios))
    details = list(dict.fromkeys(title for one in rows for title in one.details))
    details.sort(key=lambda title: title == OTHERS)  # to the end; the rest stays as it is
    several = len(grouped) > 1
    titles = ["figure", *(["system"] if several else []), "unit", "median", "min–max"]
    yield f"| {' | '.join([*titles, *(f'/ {title}' for title in ratios), *details])} |"
    yield "|" + "---|" * (len(titles) + len(ratios) + len(details))
    for one in rows:
        cells = [
            one.figure,
            *([one.system] if several else []),
            one.unit or "–",
            "–" if one.missing else number(one.median) + ("" if one.calm else "\\*"),
            f"{number(one.least)}–{number(one.most)}" if one.rounds > 1 else "–",
            *(f"{one.ratios[title]:.2f}" if title in one.ratios else "–" for title in ratios),
            *(number(one.details[title]) if title in one.details else "–" for title in details),
        ]
        yield f"| {' | '.join(cells)} |"


def _notes(rows: Sequence[Summary]) -> Iterable[str]:
    """What must be known of the systems, once for each."""
    notes = dict.fromkeys((one.system, one.note) for one in rows if one.note)
    if notes:
        yield ""
        yield from (f"- {system}: {note}" for system, note in notes)


def bars_table(verdicts: Sequence[Verdict]) -> Iterable[str]:
    """Each bar with what was measured, met or not; those of cases that did not run are counted."""
    yield "| bar | wanted | measured | |"
    yield "|---|---|---|---|"
    judged = [one for one in verdicts if one.reason != NOT_MEASURED]
    for one in judged:
        met = one.reason if one.met is None else "met" if one.met else "**not met**"
        measured = "–" if one.measured is None else precise(one.measured)
        wanted = f"{'≥' if one.bar.sense == 'at least' else '≤'} {one.bar.bound:g}"
        yield f"| {one.bar.name} | {wanted} | {measured} | {met} |"
    if len(judged) < len(verdicts):
        yield ""
        yield f"{len(verdicts) - len(judged)} more bars are of cases that this run did not measure."


def number(value: float) -> str:
    """Three digits that mean something."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def precise(value: float) -> str:
    """As `number`, with both decimals of a ratio."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}"
