"""``python -m benchmarks.pages FILE.json…``: writes the figures of runs into the pages.

Replaces the text between ``<!-- figures -->`` and ``<!-- /figures -->`` in README.md and
docs/explanation/performance.md, and in docs/guides/limits.md if the run measured queues with rules.
A run of that case alone replaces only the last one. Of several runs the first with a case counts.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import limit
from benchmarks.bars import NOT_MEASURED, judge
from benchmarks.processes import ROOT
from benchmarks.report import bars_table, read
from benchmarks.summary import (
    ACKNOWLEDGED,
    CALL,
    DRAIN,
    END_TO_END,
    HELD,
    KEPT,
    LONG_DRAIN,
    MANY,
    NOT_KEPT,
    ONE_BY_ONE,
    OWN,
    RETURN,
    NotRead,
    Reading,
    Summary,
    find,
    summaries,
)
from benchmarks.workloads import PEERS

BEGIN, END = "<!-- figures -->", "<!-- /figures -->"
README, PERFORMANCE = Path("README.md"), Path("docs/explanation/performance.md")
LIMITS = Path("docs/guides/limits.md")
IMAGES = Path("docs/images")
#: Alternative texts of the plots by name.
PLOTS: Mapping[str, str] = {
    "throughput": "jobs a second of each system in a drain, as bars with the least and the most",
    "latency": "median and 99th percentile of the start latency of each system by offered load",
    "held": "drain rate of each system in five rounds under a held snapshot, over its first",
}


_ASYNC = "async no-op jobs, one worker"
_PLAIN = Reading(case="executors", figure=r"[\d,]+ no-op jobs, thread", detail=ACKNOWLEDGED)
#: Figures of chancy: the description, in which ``{jobs}`` is the number that starts the name of the
#: figure, where it is, and the figure of the limit.
ROWS: Sequence[tuple[str, Reading, str]] = (
    (
        f"drain of {{jobs}} {_ASYNC}, history kept",
        Reading(case="drain", system=KEPT, figure=DRAIN, detail=ACKNOWLEDGED),
        limit.CLAIM_DELETE,
    ),
    (
        f"drain of {{jobs}} {_ASYNC}, finished rows deleted",
        Reading(case="drain", system=NOT_KEPT, figure=DRAIN, detail=ACKNOWLEDGED),
        limit.CLAIM_DELETE,
    ),
    (
        "drain of {jobs} plain no-op jobs through a `thread` queue",
        _PLAIN,
        limit.CLAIM_DELETE,
    ),
    (
        "drain of {jobs} plain no-op jobs through a `process` queue, the default",
        replace(_PLAIN, figure=r"[\d,]+ no-op jobs, process"),
        limit.CLAIM_DELETE,
    ),
    ("push one by one, awaited", Reading(case="push", figure=ONE_BY_ONE), limit.SINGLE),
    ("push of {jobs}, 5,000 a call", Reading(case="push", figure=MANY), limit.UNNEST),
    (
        "idle worker, from the return of a push to the job's start",
        Reading(case="latency", figure=RETURN),
        limit.PACED_NOTIFY,
    ),
    (
        "idle worker, from the call of the push",
        Reading(case="latency", figure=CALL),
        limit.PACED_INSERT,
    ),
)
#: The descriptions of the limits.
BESIDE: Mapping[str, str] = {
    limit.CLAIM_DELETE: "pgbench, claim 100 and delete 100",
    limit.SINGLE: "one awaited insert",
    limit.UNNEST: "unnest insert into a bare table",
    limit.PACED_NOTIFY: "a notification until it is heard",
    limit.PACED_INSERT: "insert and notify until heard",
}

#: The columns of the comparison: title, case and figure, and the detail with a second number.
COLUMNS: Sequence[tuple[str, str, str, str]] = (
    ("drain of 20,000, jobs/s", "drain", DRAIN, ACKNOWLEDGED),
    ("drain of 200,000, jobs/s", "drain", LONG_DRAIN, ACKNOWLEDGED),
    ("end to end, jobs/s", "end_to_end", END_TO_END, ACKNOWLEDGED),
    ("push one by one, jobs/s", "push", ONE_BY_ONE, ""),
    ("push of many, jobs/s", "push", MANY, ""),
    ("idle latency from the call, p50 / p99 ms", "latency", CALL, "p99"),
    ("worker CPU, s/10k jobs", "drain", DRAIN, "CPU s/10k"),
    ("drain under a held snapshot, last / first", "held", HELD, "last/first"),
)


def figures(head: Mapping[str, Any], found: Sequence[Summary], *, page: Path) -> str:
    """The block between the marks of a page, including the existing plots."""
    blocks = [_conditions(head, limited=page != LIMITS)]
    if page != README:
        blocks += map(_longer, head.get("others", ()))
    if page == LIMITS:
        ruled = [one for one in found if one.case == "limits"]
        verdicts = [one for one in judge(ruled) if one.reason != NOT_MEASURED]
        return "\n\n".join([*blocks, "\n".join(_ruled(ruled)), "\n".join(bars_table(verdicts))])
    compared = any(one.system not in OWN for one in found)
    if page == PERFORMANCE or not compared:  # the README has one table
        blocks.append("\n".join(_limits(found)))
    if compared:
        current = head.get("current", {})
        blocks.append("\n".join(_systems(found, current)))
        if page == PERFORMANCE:
            blocks.append("\n".join(_settings(found, current)))
    plots = PLOTS if page == PERFORMANCE else {"throughput": PLOTS["throughput"]}
    for name, alt in plots.items():
        image = IMAGES / f"{name}.svg"
        if (ROOT / image).exists():
            blocks.append(f"![{alt}]({Path(os.path.relpath(image, page.parent)).as_posix()})")
    if page == PERFORMANCE and any(one.case == "workloads" for one in found):
        blocks.append("\n".join(_workloads(found)))
    if page == PERFORMANCE:
        blocks += ["What it must reach, and whether it did in this run:"]
        blocks += ["\n".join(bars_table(judge(found)))]
    return "\n\n".join(blocks)


def _conditions(head: Mapping[str, Any], *, limited: bool) -> str:
    """The machine, the versions and the commit.

    :param limited: whether the page shows the limit beside figures.
    """
    machine, versions, settings = head["machine"], head["versions"], head["settings"]
    limit_ = "The limit is\nin the same run, without a queue. " if limited else ""
    rounds = f"Medians of {head['rounds']} rounds" if head["rounds"] > 1 else "One round"
    return (
        f"{rounds} on {machine['cores']} cores ({machine['cpu']}) with everything on them, "
        f"Postgres {versions['postgres']}\nwith fsync {settings['fsync']} and synchronous_commit "
        f"{settings['synchronous_commit']}, {versions['python']}, asyncpg "
        f"{versions['asyncpg']}. {limit_}Commit "
        f"{head['commit'] or 'unknown'}, {head['started_at'][:10]}."
    )


def _longer(head: Mapping[str, Any]) -> str:
    """Which figures are from another run."""
    rounds = "one round" if head["rounds"] == 1 else f"{head['rounds']} rounds"
    return (
        f"The figures of {', '.join(f'`{case}`' for case in head['cases'])} are of {rounds},\n"
        f"commit {head['commit'] or 'unknown'}, {head['started_at'][:10]}."
    )


def _limits(found: Sequence[Summary]) -> Iterator[str]:
    yield "| figure | median | of the limit | the limit |"
    yield "|---|---|---|---|"
    for description, of, limit_ in ROWS:
        try:
            (one,) = find(of, found)
            (most,) = find(Reading(case="limit", figure=re.escape(limit_)), found)
        except NotRead:
            continue
        value = one.details[of.detail] if of.detail else one.median
        text = description.format(jobs=one.figure.partition(" ")[0])
        tail = f", p99 {_rounded(one.details['p99'])} ms" if one.unit == "ms" else ""
        yield (
            f"| {text} | {_rounded(value)} {one.unit}{tail} | {value / most.median:.2f} "
            f"| {BESIDE[limit_]}: {_rounded(most.median)} {most.unit} |"
        )
    for one in found:
        if match := re.match(r"peak memory of a client that pushes ([\d,]+)", one.figure):
            yield (
                f"| memory of a client that pushes {match[1]} jobs in one call "
                f"| {_rounded(one.median)} MB at its peak | "
                f"| {_rounded(one.details['before MB'])} MB before |"
            )


def _ruled(found: Sequence[Summary]) -> Iterator[str]:
    """A row for each figure of queues with rules, with its ratios to others of the run."""
    yield "| figure | median | ratios | WAL of a job |"
    yield "|---|---|---|---|"
    for one in found:
        ratios = ", ".join(f"{title} {ratio:.2f}" for title, ratio in one.ratios.items())
        wal = one.details.get("WAL B/job")
        yield (
            f"| {one.figure} | {'–' if one.missing else f'{_rounded(one.median)} {one.unit}'} "
            f"| {ratios or '–'} | {'–' if wal is None else f'{_rounded(wal)} B'} |"
        )


def _workloads(found: Sequence[Summary]) -> Iterator[str]:
    """A row for each workload, with the systems that can have it."""
    loaded = [one for one in found if one.case == "workloads" and not one.missing]
    ours = [one for one in loaded if one.system == "chancy"]
    peers = [system for system in PEERS if any(one.system == system.name for one in loaded)]
    yield f"| workload | unit | chancy | {' | '.join(system.label for system in peers)} |"
    yield "|" + "---|" * (len(peers) + 3)
    for one in ours:
        # Slow peers drain fewer of the jobs that the name of a figure starts with.
        title = re.sub(r"^[\d,]+ (?=no-op)", "", one.figure)
        cells = [
            _cell(system.name, found, "workloads", re.escape(system.figure(title)), "")
            for system in peers
        ]
        yield f"| {title} | {one.unit} | {_rounded(one.median)} | {' | '.join(cells)} |"


def _systems(found: Sequence[Summary], current: Mapping[str, str]) -> Iterator[str]:
    """A row for each system, in the order of the drains, with a dash for missing figures."""
    names = dict.fromkeys(
        one.system
        for one in found
        if one.case == "drain" and re.match(DRAIN, one.figure) and not one.missing
    )
    titles = [title for title, *_ in COLUMNS]
    yield f"| system | {' | '.join(titles)} |"
    yield "|" + "---|" * (len(titles) + 1)
    notes = {one.system: one.note for one in found if one.case == "drain"}
    for name in names:
        label = f"{name}, `async` queue" if name in OWN else _named(name, notes[name], current)
        cells = [_cell(name, found, *where) for _, *where in COLUMNS]
        yield f"| {label} | {' | '.join(cells)} |"
    for executor, remark in (("process", ", the default"), ("thread", "")):
        figures = (f"{size} no-op jobs, {executor}" for size in (r"\d{2},\d{3}", r"\d{3},\d{3}"))
        cells = [_cell("chancy", found, "executors", figure, ACKNOWLEDGED) for figure in figures]
        if cells[0] != "–":
            cells += ["–"] * (len(COLUMNS) - len(cells))
            yield f"| chancy, history kept, `{executor}` queue{remark} | {' | '.join(cells)} |"


def _settings(found: Sequence[Summary], current: Mapping[str, str]) -> Iterator[str]:
    """The settings of the peers, which the first drain of each notes."""
    versions = " in their current versions, unless the current one is named too," if current else ""
    yield f"The workers of the other systems ran{versions} with these settings:"
    yield ""
    notes = {one.system: one.note for one in found if one.case == "drain" and not one.missing}
    for system, note in notes.items():
        if system not in OWN:
            settings = note.partition(", ")[2]
            yield f"- {_named(system, note, current)}: {settings or 'default'}"


def _named(system: str, note: str, current: Mapping[str, str]) -> str:
    """The name of a peer with its version, from the start of its note, and with its current
    version if that is another one or not known."""
    name = note.partition(",")[0] or system
    if not current:
        return name
    newest = current.get(system, "unknown")
    return name if name.endswith(f" {newest}") else f"{name} (current: {newest})"


def _cell(system: str, found: Sequence[Summary], case: str, figure: str, detail: str) -> str:
    # If its modes do not differ, chancy is measured once.
    for name in (system, "chancy") if system in OWN else (system,):
        try:
            (one,) = find(Reading(case=case, system=name, figure=figure), found)
        except NotRead:
            continue
        if detail and detail not in one.details:
            return "–"
        if detail == "p99":
            return f"{_rounded(one.median)} / {_rounded(one.details[detail])}"
        return _rounded(one.details[detail] if detail else one.median)
    return "–"


def _rounded(value: float) -> str:
    """A number with three significant digits."""
    return f"{float(f'{value:.3g}'):,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def written(text: str, block: str) -> str:
    """The text of a page with the block between its marks.

    :raises ValueError: the page does not have each mark exactly once.
    """
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise ValueError(f"there must be one {BEGIN} and one {END}")
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{block}\n\n{END}{rest.partition(END)[2]}"


def _pages(cases: Collection[str]) -> Sequence[Path]:
    """The pages with figures of these cases."""
    ruled = [LIMITS] if "limits" in cases else []
    return ruled if set(cases) == {"limits"} else [README, PERFORMANCE, *ruled]


def main(arguments: Sequence[str] | None = None) -> int:
    """Rewrite the pages, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pages", description=__doc__)
    parser.add_argument(
        "files", type=Path, nargs="+", metavar="FILE.json", help="output of benchmarks.run --json"
    )
    parser.add_argument(
        "--draft",
        action="store_true",
        help="also a quick run, or uncommitted changes",
    )
    options = parser.parse_args(arguments)
    heads: list[dict[str, Any]] = []
    found: list[Summary] = []
    for file in options.files:
        head, taken = read(file)
        commit = head["commit"]
        if not options.draft and (head["quick"] or commit.endswith("+") or not commit):
            parser.error(
                f"{file} is a quick run or of a tree with changes (commit {commit}): "
                "commit them and measure again, or write a draft with --draft"
            )
        known = {one.case for one in found}
        added = [one for one in summaries(taken) if one.case not in known]
        heads.append({**head, "cases": list(dict.fromkeys(one.case for one in added))})
        found += added
    for page in _pages({one.case for one in found}):
        # That of the run that measured the queues with rules, if the page has no other figures.
        head = {**heads[0], "others": heads[1:]}
        if page == LIMITS:
            head = next(one for one in heads if "limits" in one["cases"])
        path = ROOT / page
        text = written(path.read_text(encoding="utf-8"), figures(head, found, page=page))
        path.write_text(text, encoding="utf-8")
        print(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
