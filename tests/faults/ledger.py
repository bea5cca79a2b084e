"""A record of pushes, claims, outcomes and workers declared dead, written by database triggers.

The triggers write in the same transactions, so the record has what was committed, by any client and
whether or not the client got a response. It remains when a job is deleted from the tables.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

import psycopg

from tests.support.sql import ask

SCHEMA = """
create schema ledger;
create table ledger.pushes (id uuid primary key, func text not null);
create table ledger.claims (
  number bigserial primary key, id uuid not null, lease uuid not null, worker_id uuid not null,
  claimed_at timestamptz not null, unique (id, lease));
create table ledger.ends (
  number bigserial primary key, id uuid not null, lease uuid, state smallint not null);
create index on ledger.ends (id);
create table ledger.silenced (
  pid int not null, beat_at timestamptz not null,
  at timestamptz not null default clock_timestamp());
create function ledger.note_pushes() returns trigger language plpgsql as $$
begin
  insert into ledger.pushes select n.id, n.func from news n;
  return null;
end $$;
create function ledger.note_claims() returns trigger language plpgsql as $$
begin
  insert into ledger.claims (id, lease, worker_id, claimed_at)
  select n.id, n.lease, n.worker_id, n.claimed_at from news n where n.state = 1
  on conflict do nothing;
  return null;
end $$;
create function ledger.note_ends() returns trigger language plpgsql as $$
begin
  insert into ledger.ends (id, lease, state) select n.id, n.lease, n.state from news n;
  return null;
end $$;
create function ledger.note_silenced() returns trigger language plpgsql as $$
begin
  -- A worker that stops gracefully has sent a heartbeat just before.
  insert into ledger.silenced (pid, beat_at)
  select g.pid, g.beat_at from gone g where g.beat_at < clock_timestamp() - interval '1 second';
  return null;
end $$;
create trigger ledger_pushes after insert on chancy.jobs
  referencing new table as news for each statement execute function ledger.note_pushes();
create trigger ledger_claims after update on chancy.jobs
  referencing new table as news for each statement execute function ledger.note_claims();
create trigger ledger_ends after insert on chancy.finished_jobs
  referencing new table as news for each statement execute function ledger.note_ends();
create trigger ledger_silenced after delete on chancy.workers
  referencing old table as gone for each statement execute function ledger.note_silenced();
"""

#: All counts in one snapshot.
SAMPLE = """
select
  (select count(*) from ledger.pushes),
  (select count(*) from chancy.jobs),
  (select count(*) from chancy.finished_jobs where state = 4),
  (select count(*) from chancy.finished_jobs where state = 5),
  (select count(*) from chancy.finished_jobs where state = 6)
"""


def open_ledger(dsn: str) -> None:
    """Create the triggers, in a migrated database without jobs."""
    ask(dsn, SCHEMA)


def check(dsn: str) -> None:
    """Check that each pushed job has finished once, under the lease of its last claim."""
    wrong = ask(
        dsn,
        "select p.id, p.func, count(e.id), (select j.state from chancy.jobs as j where j.id = p.id)"
        " from ledger.pushes as p left join ledger.ends as e using (id)"
        " group by p.id having count(e.id) <> 1 limit 10",
    )
    assert not wrong, f"pushed, how often ended, state in jobs: {wrong}"
    assert ask(dsn, "select id from ledger.ends except select id from ledger.pushes") == []
    stolen = ask(
        dsn,
        "select e.id, e.lease, c.lease from ledger.ends as e left join lateral ("
        "  select lease from ledger.claims where id = e.id order by number desc limit 1) as c"
        " on true"
        " where e.lease is distinct from c.lease limit 10",
    )
    assert stolen == [], "ended under another lease than that of the last claim"


def repeated(dsn: str) -> int:
    """The number of jobs that were claimed more than once."""
    ((count,),) = ask(
        dsn,
        "select count(*) from (select from ledger.claims group by id having count(*) > 1) as many",
    )
    return int(count)


@dataclass(frozen=True, slots=True)
class Silence:
    """A worker that was deleted for missed heartbeats, dead or not. Times in seconds since 1970.

    :param beat_at: time of its last heartbeat.
    :param at: when it was deleted.
    """

    pid: int
    beat_at: float
    at: float


def silenced(dsn: str) -> list[Silence]:
    """All workers that were deleted for missed heartbeats."""
    found = ask(
        dsn,
        "select pid, extract(epoch from beat_at)::float8, extract(epoch from at)::float8"
        " from ledger.silenced",
    )
    return [Silence(*row) for row in found]


@dataclass(frozen=True, slots=True)
class Sample:
    """The number of jobs by state in one snapshot."""

    pushed: int
    live: int
    succeeded: int
    failed: int
    cancelled: int

    @property
    def holds(self) -> bool:
        return self.pushed == self.live + self.succeeded + self.failed + self.cancelled


class Sampler:
    """Takes a snapshot several times a second, in a thread with its own session.

    :param also: further statements for each snapshot; each must return two equal numbers.
    """

    def __init__(self, dsn: str, *also: str, every_s: float = 0.15) -> None:
        self._dsn = dsn
        self._every_s = every_s
        pairs = [f"({one}) as pair{number}" for number, one in enumerate(also)]
        self._sql = f"select * from {', '.join([f'({SAMPLE}) as counts', *pairs])}"
        self.samples: list[Sample] = []
        #: Violated invariants, and unexpected errors of the thread.
        self.problems: list[object] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join(30)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                with psycopg.connect(self._dsn, autocommit=True) as session:
                    while not self._stopping.wait(self._every_s):
                        self._look(session)
            except psycopg.OperationalError:
                # The server is down: the test crashes it.
                time.sleep(self._every_s)
            except Exception as error:
                self.problems.append(error)
                return

    def _look(self, session: psycopg.Connection[tuple[int, ...]]) -> None:
        (row,) = ask(session, self._sql)
        sample, pairs = Sample(*row[:5]), row[5:]
        self.samples.append(sample)
        if not sample.holds or pairs[::2] != pairs[1::2]:
            self.problems.append((sample, pairs))

    def check(self, *, at_least: int) -> None:
        """Check that all snapshots held, ``at_least`` of them while jobs were unfinished."""
        assert self.problems == []
        busy = [sample for sample in self.samples if sample.live]
        assert len(busy) >= at_least, f"only {len(busy)} samples"
