"""``python -m benchmarks.plots FILE.json --into docs/images``: plots of a run as SVG.

The same file always produces the same images. The background is transparent, all colours are
visible on white and on black, and they are distinguishable for colour-blind readers.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.drain import acknowledged
from benchmarks.limit import CLAIM_DELETE
from benchmarks.measurement import Taken
from benchmarks.report import number, read
from benchmarks.summary import (
    ACKNOWLEDGED,
    CALL,
    DRAIN,
    HELD,
    KEPT,
    NOT_KEPT,
    NotRead,
    Reading,
    Summary,
    by_system,
    find,
    summaries,
)

#: Text and axes: equal contrast to white and to black.
_INK = "#7b7b7b"
_GRID = "#7b7b7b40"
_CHANCY = {"chancy": "#d55e00", KEPT: "#d55e00", NOT_KEPT: "#e08a1e"}
#: Colours of the peers in order, and the markers of their lines.
_PEERS = ("#1f83c4", "#009e73", "#b866a0", "#8a7f3d", "#7b7b7b", "#4f9d9d", "#9d6b6b", "#6b6b9d")
_MARKS = "osD^vPX*"
_LOADS: tuple[tuple[str, str], ...] = (
    ("idle", CALL),
    *((f"{rate:,}", rf"{rate:,} a second, {CALL}") for rate in (100, 500, 2_000, 5_000)),
)


def throughput(found: Sequence[Summary]) -> Figure:
    """The drain rate of each system, of `settled_rates`: medians as bars, minimum and maximum as
    whiskers."""
    rows = sorted(_systems(found, "drain", DRAIN), key=lambda one: one.median)
    figure = Figure(figsize=(8, 0.9 + 0.42 * max(1, len(rows))), layout="constrained")
    axes = figure.subplots()
    colours = _colours(found)
    for place, one in enumerate(rows):
        own = one.system in _CHANCY
        axes.barh(place, one.median, color=colours[one.system], alpha=1 if own else 0.7, height=0.7)
        if one.rounds > 1:
            whiskers = [[one.median - one.least], [one.most - one.median]]
            axes.errorbar(one.median, place, xerr=whiskers, color=_INK, capsize=3, linewidth=1.2)
        # In a separate column, where neither whiskers nor the limit cross the numbers.
        axes.annotate(
            number(one.median),
            (1, place),
            xycoords=("axes fraction", "data"),
            xytext=(56, 0),
            textcoords="offset points",
            ha="right",
            va="center",
            fontweight="bold" if own else "normal",
        )
    _mark_limit(axes, found)
    jobs = {one.system: one.figure.partition(" ")[0] for one in rows}
    usual = max(jobs.values(), key=list(jobs.values()).count, default="")
    labels = [
        one.system + ("" if jobs[one.system] == usual else f" ({jobs[one.system]} jobs)")
        for one in rows
    ]
    axes.set_yticks(range(len(rows)), labels)
    for label, one in zip(axes.get_yticklabels(), rows, strict=True):
        label.set_fontweight("bold" if one.system in _CHANCY else "normal")
    axes.tick_params(axis="y", length=0)
    axes.margins(x=0.08)
    axes.set_xlim(left=0)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.grid(axis="x", color=_GRID)
    axes.set_axisbelow(True)
    axes.set_xlabel(f"jobs/s, one worker empties a backlog of {usual}")
    return figure


def _mark_limit(axes: Axes, found: Sequence[Summary]) -> None:
    """Draw a line at the rate of pgbench on a minimal table."""
    for one in found:
        if one.case == "limit" and one.figure == CLAIM_DELETE:
            axes.axvline(one.median, color=_INK, linestyle=(0, (4, 3)), linewidth=1)
            axes.annotate(
                "pgbench, no queue",
                (one.median, 1),
                xycoords=("data", "axes fraction"),
                xytext=(0, 3),
                textcoords="offset points",
                ha="center",
                fontsize=9.5,
            )


def latency(found: Sequence[Summary]) -> Figure:
    """The latency from the call of a push to the start of its job, by pushes a second."""
    figure = Figure(figsize=(9, 4.2), layout="constrained")
    panes: Sequence[Axes] = figure.subplots(1, 2, sharey=True)
    colours = _colours(found)
    for axes, detail, title in zip(panes, ("", "p99"), ("median", "99th percentile"), strict=True):
        for turn, (system, rows) in enumerate(_by_load(found).items()):
            values = [one.details[detail] if detail else one.median for one in rows.values()]
            _line(axes, system, list(rows), values, colours[system], turn)
        axes.set_title(title, fontsize=10.5)
        axes.set_yscale("log")
        axes.set_xlim(-0.3, len(_LOADS) - 0.7)
        axes.set_xticks(range(len(_LOADS)), [load for load, _ in _LOADS])
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
        axes.grid(axis="y", color=_GRID)
        axes.set_xlabel("pushes a second")
    panes[0].set_ylabel("ms from the call of push to the start of the job")
    _legend(figure, panes[0])
    return figure


def _by_load(found: Sequence[Summary]) -> dict[str, dict[int, Summary]]:
    """The figures of each system by the position of their load."""
    rows: dict[str, dict[int, Summary]] = {}
    for place, (_, pattern) in enumerate(_LOADS):
        for one in _systems(found, "latency", pattern):
            rows.setdefault(one.system, {})[place] = one
    return rows


def held(found: Sequence[Summary]) -> Figure:
    """Successive drains under a held snapshot, divided by the first one of each system."""
    figure = Figure(figsize=(8, 4.2), layout="constrained")
    axes = figure.subplots()
    colours = _colours(found)
    for turn, one in enumerate(_systems(found, "held", HELD)):
        rounds = [value for title, value in one.details.items() if title.startswith("round ")]
        rates = [*rounds, one.median]
        shares = [rate / rates[0] for rate in rates]
        _line(axes, one.system, range(1, len(rates) + 1), shares, colours[one.system], turn)
        axes.set_xticks(range(1, len(rates) + 1))
    axes.axhline(1, color=_INK, linestyle=(0, (4, 3)), linewidth=1)
    axes.set_ylim(bottom=0)
    axes.grid(axis="y", color=_GRID)
    axes.set_xlabel("drain after drain, while another session holds a snapshot")
    axes.set_ylabel("rate, over the first drain")
    _legend(figure, axes)
    return figure


def _line(
    axes: Axes,
    system: str,
    places: Sequence[int],
    values: Sequence[float],
    colour: str,
    turn: int,
) -> None:
    own = system in _CHANCY
    axes.plot(
        places,
        values,
        color=colour,
        linewidth=2.6 if own else 1.4,
        marker=_MARKS[turn % len(_MARKS)],
        markersize=7 if own else 5.5,
        zorder=3 if own else 2,
        label=system,
    )


def _legend(figure: Figure, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside right upper", fontsize=10)


def _systems(found: Sequence[Summary], case: str, pattern: str) -> list[Summary]:
    """The figure of each system that has it."""
    matches: list[Summary] = []
    for system in by_system([one for one in found if one.case == case]):
        try:
            matches += find(Reading(case=case, system=system, figure=pattern), found)
        except NotRead:
            continue
    return matches


def _colours(found: Sequence[Summary]) -> Mapping[str, str]:
    """The colour of each system, the same in every plot."""
    peers = [system for system in by_system(found) if system not in _CHANCY]
    return _CHANCY | {system: _PEERS[n % len(_PEERS)] for n, system in enumerate(peers)}


def settled_rates(taken: Sequence[Taken]) -> list[Taken]:
    """The repetitions, with the rates of drains until the commit of the last settlement."""
    return [
        replace(one, measurement=acknowledged(one.measurement))
        if one.case == "drain" and ACKNOWLEDGED in one.measurement.details
        else one
        for one in taken
    ]


PLOTS: Mapping[str, Callable[[Sequence[Summary]], Figure]] = {
    "throughput": throughput,
    "latency": latency,
    "held": held,
}


def draw(found: Sequence[Summary], into: Path) -> list[Path]:
    """Write a file for each plot; returns their paths."""
    into.mkdir(parents=True, exist_ok=True)
    paths: list[Path] = []
    with mpl.rc_context(
        {
            "svg.hashsalt": "chancy",
            "font.size": 10.5,
            "text.color": _INK,
            "axes.edgecolor": _INK,
            "axes.labelcolor": _INK,
            "axes.spines.right": False,
            "axes.spines.top": False,
            "xtick.color": _INK,
            "ytick.color": _INK,
            "legend.frameon": False,
        }
    ):
        for name, plot in PLOTS.items():
            path = into / f"{name}.svg"
            # Without date and version, so that the same figures produce the same file.
            metadata = {"Date": None, "Creator": None}
            plot(found).savefig(path, format="svg", transparent=True, metadata=metadata)
            paths.append(path)
    return paths


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw the plots, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plots", description=__doc__)
    parser.add_argument(
        "file", type=Path, metavar="FILE.json", help="output of benchmarks.run --json"
    )
    parser.add_argument("--into", type=Path, required=True, metavar="DIRECTORY")
    options = parser.parse_args(arguments)
    _, taken = read(options.file)
    for path in draw(summaries(settled_rates(taken)), options.into):
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
