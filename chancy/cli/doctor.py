"""The ``chancy doctor`` command."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Sequence

import click

from chancy.cli import output
from chancy.cli.exits import AWAY, NO
from chancy.cli.options import CommandTarget, as_json, on_target
from chancy.plugin.commands import Seconds
from chancy.plugin.finding import Finding, Severity

_ORDER = list(Severity)


@click.command()
@on_target
@click.option(
    "--transaction",
    type=Seconds(),
    default=60.0,
    show_default=True,
    metavar="S",
    help="The seconds for which a transaction may be open.",
)
@click.option(
    "--wait",
    type=Seconds(),
    default=300.0,
    show_default=True,
    metavar="S",
    help="The seconds for which a due job of a served queue may wait.",
)
@as_json
def doctor(target: CommandTarget, transaction: float, wait: float, json_: bool) -> None:
    """Check the database, the workers and the queues, and print what to do about each problem.

    Reads statistics and indexes only, so it costs the same with ten million jobs. Each check has
    a time limit, and one that fails does not stop the others. Problems come first.

    Exits 0 if there is no problem, 1 if there is one, and 4 if there is none but a check could
    not be made. Exits 2 or 4 at once if the database cannot be reached.

    \b
    Example:
      chancy doctor
      chancy doctor --app shop.jobs:chancy --json | jq '.[] | select(.ok | not)'
    """
    from chancy.app.checkup.rounds import examine

    async def main() -> Sequence[Finding]:
        # Not `opened`: tables at another version are a finding.
        async with target.application() as chancy:
            return await examine(chancy, transaction_s=transaction, wait_s=wait)

    found = sorted(asyncio.run(main()), key=lambda one: _ORDER.index(one.severity))
    if json_:
        output.script([finding.as_json() for finding in found])
    else:
        _print(found)
    severities = {finding.severity for finding in found}
    if severities & {Severity.ERROR, Severity.WARNING}:
        sys.exit(NO)
    if Severity.UNKNOWN in severities:
        sys.exit(AWAY)


def _print(found: Sequence[Finding]) -> None:
    width = max(len(finding.about) for finding in found)
    for finding in found:
        output.line(f"{finding.severity:<8} {finding.about:<{width}}  {finding.found}")
        if finding.todo:
            output.line(f"{'':<8} {'':<{width}}  → {finding.todo}")
    counts = Counter(finding.severity for finding in found)
    output.line(", ".join(_count(one, counts[one]) for one in _ORDER if counts[one]))


def _count(severity: Severity, number: int) -> str:
    plural = number > 1 and severity in (Severity.ERROR, Severity.WARNING)
    return f"{number} {severity}{'s' * plural}"
