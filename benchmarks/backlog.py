"""Pending jobs by the million, made by the server itself."""

from __future__ import annotations

from benchmarks.control import Control
from chancy import Queue

#: Rows of one statement: a million at once would need a transaction of minutes on a slow disk.
_ROWS = 250_000

# Ids that ascend as those of the client do; positions from the sequence of the pushes.
_FILL = """
insert into chancy_bench.jobs (id, pos, state, queue, func, arguments, max_attempts)
select
  (lpad(to_hex((extract(epoch from clock_timestamp()) * 1000)::bigint), 12, '0') || '7'
    || substr(md5(n::text), 1, 3) || '8' || lpad(to_hex(n), 15, '0'))::uuid,
  nextval('chancy_bench.positions'), 0, %s, 'benchmarks.jobs.noop',
  jsonb_build_object('number', n), 3
from generate_series(%s::bigint, %s::bigint) as n"""


def fill(control: Control, queue: Queue, jobs: int, *, first: int = 0) -> None:
    """Add pending jobs of `benchmarks.jobs.noop`, numbered from ``first``, and analyse."""
    for begin in range(first, first + jobs, _ROWS):
        control.run(_FILL, queue.name, begin, min(begin + _ROWS, first + jobs) - 1)
    # Or the server would do it in the background while something is measured.
    control.run("vacuum analyze chancy_bench.jobs")
