"""Millions of finished jobs in partitions that are attached to the history and detached."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from benchmarks.session import Control

#: Days before today that have a partition. The last one is older than the pruner keeps.
DAYS = (0, 1, 2, 3, 4, 5, 6, 9)
#: Rows of one statement.
_ROWS = 250_000

# Ids ascend like those of the client, over the first hour or so of the day.
_FILL = """
insert into chancy_bench.{table} (
  id, pos, state, queue, priority, func, arguments, attempt, max_attempts, crashes, lease,
  worker_id, claimed_at, pushed_at, finished_at)
select
  (lpad(to_hex((extract(epoch from t.at) * 1000)::bigint), 12, '0') || '7000'
    || '8' || lpad(to_hex(n), 15, '0'))::uuid,
  n, 4, 'kept', 0, 'benchmarks.jobs.noop', jsonb_build_object('number', n), 1, 3, 0,
  gen_random_uuid(), '01900000-0000-7000-8000-000000000000', t.at, t.at, t.at
from generate_series(%s::bigint, %s::bigint) as n
cross join lateral (
  select '{begin}'::timestamptz + mod(n, 86400000) * interval '1 ms' as at) as t"""
# With a constraint of the same bounds, so that attaching the partition reads no row.
_MAKE = """
create table chancy_bench.{table} (
  like chancy_bench.finished_jobs including defaults including constraints,
  check (finished_at is not null and finished_at >= '{begin}' and finished_at < '{end}')
) with (autovacuum_enabled = off)"""
_FINISH = (
    "create index on chancy_bench.{table} (id)",
    "create index on chancy_bench.{table} (queue, finished_at desc)",
    "vacuum (freeze, analyze) chancy_bench.{table}",
)
_ATTACH = """
alter table chancy_bench.finished_jobs attach partition chancy_bench.{table}
for values from ('{begin}') to ('{end}')"""
_DETACH = "alter table chancy_bench.finished_jobs detach partition chancy_bench.{table}"


class History:
    """A history of ``rows`` finished jobs, spread evenly over `DAYS`.

    It exists until the schema is dropped, so later rounds reuse it.
    """

    def __init__(self, control: Control, rows: int) -> None:
        self._control = control
        self._rows = rows // len(DAYS)
        self._today = datetime.now(UTC).date()

    def build(self) -> None:
        """Create the missing days. Takes some 8 s for each million rows."""
        for ago in DAYS:
            if self._control.value("select to_regclass(%s)::text", f"chancy_bench.{_table(ago)}"):
                continue
            self._run(_MAKE, ago)
            for start in range(0, self._rows, _ROWS):
                self._run(_FILL, ago, start, min(start + _ROWS, self._rows) - 1)
            for statement in _FINISH:
                self._run(statement, ago)
        self._control.run("checkpoint")

    @contextmanager
    def attached(self) -> Generator[None]:
        """Use it as the history of the queue within the block."""
        self._run(_DETACH, 0, table=self._partition(0))
        for ago in DAYS:
            self._run(_ATTACH, ago)
        yield
        for ago in DAYS:
            self._run(_DETACH, ago)
        self._run(_ATTACH, 0, table=self._partition(0))

    def offer_oldest(self) -> None:
        """Attach only the oldest day, under the name that the pruner expects."""
        self._run("alter table chancy_bench.{table} rename to {partition}", DAYS[-1])
        self._run(_ATTACH, DAYS[-1], table=self._partition(DAYS[-1]))

    def _partition(self, ago: int) -> str:
        """The name that the SQL functions of the package use for the partition of a day."""
        return f"finished_jobs_{self._today - timedelta(days=ago):%Y%m%d}"

    def _run(self, statement: str, ago: int, *parameters: object, table: str = "") -> None:
        day = self._today - timedelta(days=ago)
        # Composed only of the constants above and of dates.
        text: Any = statement.format(
            table=table or _table(ago),
            partition=self._partition(ago),
            begin=f"{day} 00:00+00",
            end=f"{day + timedelta(days=1)} 00:00+00",
        )
        self._control.run(text, *parameters)


def _table(ago: int) -> str:
    # Not the name that the pruner expects: it runs in each worker and would drop the oldest day.
    return f"history_{ago}"
