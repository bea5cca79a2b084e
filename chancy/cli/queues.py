"""The ``chancy queue`` commands."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from click.core import ParameterSource

from chancy.broker.optional import now_of
from chancy.broker.values import QueueCounts, WorkerRecord
from chancy.cli import bounds, output, shell_completion
from chancy.cli.exits import AWAY, NO, complain
from chancy.cli.options import DATETIME, CommandTarget, as_json, on_target
from chancy.job.limits import encode_limits
from chancy.plugin.commands import Seconds, refuse
from chancy.queue.queue import DEFAULT_BROKER, Queue
from chancy.queue.rules import Rule, UnknownRules, plain_rules

if TYPE_CHECKING:
    from chancy.app.app import Chancy

#: The settings of a queue by the parameters of `declare` that give them.
_SETTINGS: Mapping[str, str] = {
    **{name: name for name in ("executor", "concurrency", "tags", "poll_interval_s")},
    **{name: name for name in ("keep_finished", "broker", "broker_options")},
    **dict.fromkeys(("time_limit", "memory_limit"), "limits"),
    **dict.fromkeys(bounds.OPTIONS, "options"),
}
#: Counts by name of the queue; None if they are unknown. Queues without jobs are left out.
_Counts = Mapping[str, QueueCounts | None]

_COLUMNS = (
    "name",
    "broker",
    "executor",
    "concurrency",
    "rules",
    "limits",
    "options",
    "tags",
    "poll s",
    "state",
)
#: Queues, each with the errors in its row.
_Found = list[tuple[Queue, list[str]]]


@click.group()
def queue() -> None:
    """List, declare, pause, resume and delete queues. Workers apply changes within a second.

    \b
    Example:
      chancy queue declare mail --executor async --concurrency 50
      chancy queue pause mail --for 600
    """


@queue.command("list")
@on_target
@as_json
def list_(target: CommandTarget, json_: bool) -> None:
    """List queues with their settings and job counts.

    Counts stop at 100,000+; "oldest s" is for how long the oldest due job has waited. The list
    includes undeclared queues that have jobs. Invalid rows, and workers that cannot serve a queue,
    are reported on stderr. An unknown count is shown as - or null, with the reason on stderr: its
    broker is unavailable (exit code 4), or the application does not have it.

    \b
    Example:
      chancy queue list
      chancy queue list --json | jq '.[] | select(.paused) | .name'
    """

    async def look(
        chancy: Chancy,
    ) -> tuple[_Found, _Counted, Mapping[str, float], Sequence[WorkerRecord]]:
        queues = await _queues(chancy)
        counted = await _counted(chancy, [queue for queue, _ in queues])
        backlogs = await chancy.backlogs()
        oldest = {n: one.oldest_s for n, one in backlogs.items() if one.oldest_s is not None}
        return queues, counted, oldest, await chancy.get_workers()

    found, (counts, unknown, away), oldest, workers = target.run(look)
    for reason in unknown:
        complain(reason)
    if json_:
        _print_json(found, counts, oldest, workers)
    else:
        _print(found, counts, oldest, workers)
    if away:
        sys.exit(AWAY)


def _print_json(
    found: _Found,
    counts: _Counts,
    oldest: Mapping[str, float],
    workers: Sequence[WorkerRecord],
) -> None:
    output.script(
        [
            {
                **_facts(queue),
                **_count(counts, queue.name),
                "oldest_s": oldest.get(queue.name),
                "declared": True,
                "wrong": errors,
                "broken": _broken(workers, queue.name),
            }
            for queue, errors in found
        ]
        + [
            {
                "name": name,
                **_count(counts, name),
                "oldest_s": oldest.get(name),
                "declared": False,
            }
            for name in _undeclared(found, counts)
        ]
    )


def _print(
    found: _Found,
    counts: _Counts,
    oldest: Mapping[str, float],
    workers: Sequence[WorkerRecord],
) -> None:
    rows = [_row(queue, counts, len(_broken(workers, queue.name))) for queue, _ in found]
    rows += [
        [name, "(not declared)", *[None] * 7, "", *_cells(counts, name)]
        for name in _undeclared(found, counts)
    ]
    for one in rows:
        waited_s = oldest.get(str(one[0]))
        one.append(None if waited_s is None else round(waited_s))
    output.table((*_COLUMNS, *QueueCounts._fields, "oldest s"), rows)
    for queue, errors in found:
        for error in errors:
            complain(error)
        for worker in _broken(workers, queue.name):
            complain("queue {}: worker {worker} on {host}: {why}".format(queue.name, **worker))


def _undeclared(found: _Found, counts: _Counts) -> Sequence[str]:
    """Names of queues that have jobs but no row."""
    return sorted(counts.keys() - {queue.name for queue, _ in found})


def _broken(workers: Sequence[WorkerRecord], name: str) -> list[dict[str, str]]:
    """The workers that cannot serve a queue, each with the reason."""
    return [
        {"worker": str(worker.id), "host": worker.host, "why": worker.broken[name]}
        for worker in workers
        if name in worker.broken
    ]


async def _queues(chancy: Chancy) -> _Found:
    """The queues, each with the errors in its row."""
    from chancy.postgres import rows
    from chancy.postgres.broker import PostgresBroker

    broker = chancy.control
    if isinstance(broker, PostgresBroker):
        return [rows.queue(row) for row in await broker.fetch(broker.sql.queues, None)]
    return [(queue, []) for queue in await chancy.get_queues()]


def _row(queue: Queue, counts: _Counts, broken: int) -> list[object]:
    """A queue as the row of a table.

    :param broken: the number of workers that cannot serve it.
    """
    state = "active"
    if queue.paused:
        state = f"paused until {output.cell(queue.resume_at)}" if queue.resume_at else "paused"
    if broken:
        state += f", broken on {broken} worker{'s' * (broken > 1)}"
    tags = " ".join(sorted(queue.tags)) or None
    return [
        queue.name,
        queue.broker,
        queue.executor,
        queue.concurrency,
        _shown_rules(queue.rules) or None,
        bounds.shown_limits(queue.limits),
        bounds.shown_options(queue.options),
        tags,
        f"{queue.poll_interval_s:g}",
        state if queue.keep_finished else f"{state}, keeps no history",
        *_cells(counts, queue.name),
    ]


def _shown_rules(rules: tuple[Rule, ...]) -> str:
    if any(isinstance(rule, UnknownRules) for rule in rules):
        return "unknown rules"
    return ", ".join(map(_shown_rule, plain_rules(rules)))


def _shown_rule(rule: Mapping[str, Any]) -> str:
    """A rule in a few characters, such as ``rate 600/60s by host``."""
    size = f" {rule['limit']}" if "limit" in rule else ""
    if "allowed" in rule:
        size = f" {rule['allowed']}/{rule['per_s']:g}s"
    return f"{rule['rule']}{size}" + (f" by {rule['by']}" if rule["by"] else "")


def _cells(counts: _Counts, name: str) -> list[object]:
    """The counts of a queue as table cells."""
    values = _count(counts, name).values()
    return [None if value is None else output.capped(value) for value in values]


def _count(counts: _Counts, name: str) -> dict[str, int | None]:
    """The counts of a queue by state; None for each if they are unknown."""
    found = counts.get(name, QueueCounts())
    return dict.fromkeys(QueueCounts._fields) if found is None else found._asdict()


def _facts(queue: Queue) -> dict[str, Any]:
    """The settings of a queue as JSON."""
    return {
        "name": queue.name,
        "executor": queue.executor,
        "concurrency": queue.concurrency,
        "tags": sorted(queue.tags),
        "poll_interval_s": queue.poll_interval_s,
        "keep_finished": queue.keep_finished,
        "limits": json.loads(encode_limits(queue.limits) or "{}"),
        "rules": plain_rules(queue.rules),
        "options": bounds.plain_options(queue.options),
        "broker": queue.broker,
        "broker_options": queue.broker_options,
        "paused": queue.paused,
        "resume_at": queue.resume_at and queue.resume_at.isoformat(),
    }


class _Counted(NamedTuple):
    """The job counts of queues.

    :ivar unknown: one line for each reason why some counts are unknown.
    :ivar away: whether a broker is unavailable.
    """

    counts: _Counts
    unknown: Sequence[str]
    away: bool


async def _counted(chancy: Chancy, queues: Sequence[Queue]) -> _Counted:
    """Count the jobs of queues. A count is None if the queue's broker is unavailable or not
    supplied by the plugins of this application."""
    from chancy.routing.router import RoutedBroker

    away: Mapping[str, str] = {}
    brokers = {DEFAULT_BROKER}
    if isinstance(chancy.broker, RoutedBroker):
        found, away = await chancy.broker.counted()
        brokers |= chancy.broker.brokers.all.keys()
    else:
        found = await chancy.counts()
    counts: dict[str, QueueCounts | None] = dict(found)
    unknown = [f"the broker {name} is unavailable: {why}" for name, why in away.items()]
    for queue in queues:
        if queue.broker in away:
            counts[queue.name] = None
        elif queue.broker not in brokers:
            counts[queue.name] = None
            unknown.append(
                f"queue {queue.name}: this application has no broker {queue.broker}: pass the "
                "--app of an application that has it"
            )
    return _Counted(counts, unknown, bool(away))


def _broker_options(
    ctx: click.Context, param: click.Parameter, given: tuple[str, ...]
) -> dict[str, Any]:
    """The options of a broker by their keys."""
    found: dict[str, Any] = {}
    for one in given:
        key, equals, value = one.partition("=")
        if not equals:
            raise click.BadParameter(f"{one!r} is not KEY=VALUE", ctx, param)
        try:
            found[key] = json.loads(value)
        except ValueError:
            found[key] = value
    return found


@queue.command()
@on_target
@click.argument("name", shell_complete=shell_completion.queues)
@click.option(
    "--executor",
    default="process",
    show_default=True,
    metavar="NAME",
    help="process, thread, async, or an executor that is installed.",
)
@click.option("--concurrency", type=int, help="Jobs one worker runs at a time.")
@click.option(
    "--tag",
    "tags",
    multiple=True,
    metavar="PATTERN",
    help="Serve it only by workers with a matching tag. Repeatable.",
)
@click.option(
    "--poll-interval",
    "poll_interval_s",
    type=float,
    default=1.0,
    show_default=True,
    metavar="S",
    help="Seconds between polls while notifications fail.",
)
@click.option(
    "--keep-finished/--no-keep-finished",
    default=True,
    show_default=True,
    help="Keep finished jobs in the history.",
)
@bounds.bounded
@click.option(
    "--broker",
    default=DEFAULT_BROKER,
    show_default=True,
    metavar="NAME",
    help="The broker that stores the jobs; plugins supply others.",
)
@click.option(
    "--broker-option",
    "broker_options",
    multiple=True,
    metavar="KEY=VALUE",
    callback=_broker_options,
    help="An option of that broker; VALUE may be JSON. Repeatable.",
)
@click.option("--upsert", is_flag=True, help="Change the settings of an existing queue.")
@as_json
def declare(
    target: CommandTarget,
    name: str,
    tags: tuple[str, ...],
    upsert: bool,
    json_: bool,
    **settings: Any,
) -> None:
    """Create a queue, or with --upsert change the settings that are given.

    The other settings of an existing queue, its limits, rules and pause stay as they are; another
    executor also resets the concurrency and the executor options. Exits 1 if the queue exists with
    other settings and --upsert is not given.

    \b
    Example:
      chancy queue declare video --tag 'gpu=.*' --concurrency 1 --upsert
      chancy queue declare reports --time-limit 600 --memory-limit 512 --max-jobs 100
    """
    settings["tags"] = frozenset(tags)
    given = _given(click.get_current_context()) if upsert else None
    wanted, stored = target.run(lambda chancy: _declare(chancy, name, settings, given))
    if json_:
        output.script(_facts(stored))
    differs = {
        key
        for key, value in _facts(wanted).items()
        if key not in ("paused", "resume_at") and value != _facts(stored)[key]
    }
    if differs:
        complain(
            f"queue {name!r} exists with different settings ({', '.join(sorted(differs))}): "
            "pass --upsert to change them"
        )
        sys.exit(NO)
    if not json_:
        output.line(f"queue {name} is declared")


@queue.command()
@on_target
@click.argument("name", shell_complete=shell_completion.queues)
@click.option(
    "--resume-at", type=DATETIME, metavar="ISO", help="Resume automatically at this time."
)
@click.option(
    "--for", "for_s", type=Seconds(), metavar="S", help="Resume automatically after S seconds."
)
@as_json
def pause(
    target: CommandTarget,
    name: str,
    resume_at: datetime | None,
    for_s: float | None,
    json_: bool,
) -> None:
    """Stop claiming jobs of a queue. Running jobs continue.

    \b
    Example:
      chancy queue pause mail
      chancy queue pause mail --for 600
    """
    if resume_at is not None and for_s is not None:
        raise click.UsageError("--resume-at and --for exclude each other: pass one of them")

    async def stop(chancy: Chancy) -> tuple[bool, str]:
        until = resume_at
        if for_s is not None:
            until = await now_of(chancy.control) + timedelta(seconds=for_s)
        done = await chancy.pause_queue(name, resume_at=until)
        return done, "" if until is None else f" until {output.cell(until)}"

    done, until = target.run(stop)
    _report(done, name, f"is paused{until}", json_=json_)


@queue.command()
@on_target
@click.argument("name", shell_complete=shell_completion.queues)
@as_json
def resume(target: CommandTarget, name: str, json_: bool) -> None:
    """Resume a paused queue: workers claim its jobs again.

    \b
    Example:
      chancy queue resume mail
    """
    done = target.run(lambda chancy: chancy.resume_queue(name))
    _report(done, name, "is active", json_=json_)


@queue.command()
@on_target
@click.argument("name", shell_complete=shell_completion.queues)
@as_json
def delete(target: CommandTarget, name: str, json_: bool) -> None:
    """Delete a queue. Its jobs are kept and run once it is declared again.

    \b
    Example:
      chancy queue delete mail
    """
    done = target.run(lambda chancy: chancy.delete_queue(name))
    _report(done, name, "is deleted; its jobs are kept", json_=json_)


def _given(context: click.Context) -> Set[str]:
    """The settings that the command line gives."""
    return {
        setting
        for parameter, setting in _SETTINGS.items()
        if context.get_parameter_source(parameter) is not ParameterSource.DEFAULT
    }


async def _declare(
    chancy: Chancy, name: str, settings: Mapping[str, Any], given: Set[str] | None
) -> tuple[Queue, Queue]:
    """Declare a queue, or change the given settings of an existing one; None: change none.

    Returns the queue as declared, and as it stands.
    """
    queues = () if given is None else await chancy.get_queues()
    existing = next((queue for queue in queues if queue.name == name), None)
    if existing is None or given is None:
        options = bounds.options_of(settings["options"], settings["executor"])
        wanted = Queue(name=name, **{**settings, "options": options})
    else:
        wanted = _changed(existing, settings, given)
    return wanted, await chancy.declare(wanted, upsert=given is not None)


def _changed(existing: Queue, settings: Mapping[str, Any], given: Set[str]) -> Queue:
    """An existing queue with the given settings. Its other limits and options stay."""
    changes = {name: settings[name] for name in given}
    executor = changes.get("executor", existing.executor)
    options = dict(settings["options"])
    if executor == existing.executor:
        options = {**bounds.plain_options(existing.options), **options}
    else:
        changes["concurrency"] = settings["concurrency"]
    changes["options"] = bounds.options_of(options, executor)
    limits = {limit.type: limit for limit in (*existing.limits, *settings["limits"])}
    changes["limits"] = tuple(limits.values())
    return replace(existing, **changes)


def _report(done: bool, name: str, change: str, *, json_: bool) -> None:
    if json_:
        output.script({"queue": name, "found": done})
    if not done:
        refuse(f"there is no queue {name!r}")
    if not json_:
        output.line(f"queue {name} {change}")
