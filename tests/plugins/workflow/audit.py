"""The events of every step of a database, in their order, recorded by triggers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from chancy.states import State
from tests.support.sql import ask

_TABLE = """
create table public.audit (
  seq bigserial primary key, at timestamptz not null default clock_timestamp(), what text not null,
  flow uuid not null, step text not null, run int not null, state int not null)
"""
_PUSHED = """
create function public.audit_pushed() returns trigger language plpgsql as $$
begin
  if new.meta ? 'workflow' then
    insert into public.audit (what, flow, step, run, state) select 'pushed',
      (new.meta #>> '{workflow,id}')::uuid, new.meta #>> '{workflow,step}',
      (new.meta #>> '{workflow,run}')::int, 0;
  end if;
  return null;
end $$
"""
_ENDED = """
create function public.audit_ended() returns trigger language plpgsql as $$
begin
  insert into public.audit (what, flow, step, run, state)
  values ('ended', new.workflow_id, new.name, new.run, new.state);
  return null;
end $$
"""
_TRIGGERS = (
    "create trigger audit_pushed after insert on chancy.jobs for each row"
    " execute function public.audit_pushed()",
    "create trigger audit_ended after update on chancy.workflows_steps for each row"
    " when (new.state <> 0 and old.state <> new.state) execute function public.audit_ended()",
)


class Entry(NamedTuple):
    """One event: the job of a step was pushed, or the step ended in a state."""

    what: str
    step: str
    run: int
    state: int


def begin(dsn: str) -> None:
    for statement in (_TABLE, _PUSHED, _ENDED, *_TRIGGERS):
        ask(dsn, statement)


def entries(dsn: str, flow: UUID) -> list[Entry]:
    """The events of a workflow, in their order."""
    wanted = "select what, step, run, state from public.audit where flow = %s order by seq"
    return [Entry(*row) for row in ask(dsn, wanted, [flow])]


def count(dsn: str) -> int:
    """The number of events of all workflows."""
    ((events,),) = ask(dsn, "select count(*) from public.audit")
    return int(events)


def standing(dsn: str, flow: UUID) -> str:
    """The jobs and steps that a stuck workflow waits for."""
    tables = ("workers", "jobs", "workflows_timers", "workflows_starts")
    rows = [f"{table}: {ask(dsn, f'select * from chancy.{table}')}" for table in tables]
    return "\n".join([f"{entries(dsn, flow)}", *rows])


def check_once(found: Sequence[Entry]) -> None:
    """Each run of a step was pushed at most once, and ended at most once."""
    counts = Counter((one.what, one.step, one.run) for one in found)
    assert not [one for one, count in counts.items() if count > 1], found


def check_pushes(found: Sequence[Entry], after: dict[str, list[str]]) -> None:
    """No step was pushed before the steps it waits for had succeeded or were ignored."""
    well: set[str] = set()
    for one in found:
        if one.what == "ended":
            (well.add if one.state in (State.SUCCEEDED, 7) else well.discard)(one.step)
        else:
            missing = {*after.get(one.step, ())} - well
            assert not missing, f"{one} was pushed before {missing}: {found}"


def ended(found: Sequence[Entry]) -> list[str]:
    """The steps in the order in which they ended for the last time, cancelled ones left out."""
    last = {one.step: at for at, one in enumerate(found) if one.what == "ended"}
    return [
        one.step
        for at, one in enumerate(found)
        if last.get(one.step) == at and one.state != State.CANCELLED
    ]
