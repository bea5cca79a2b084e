"""Queues: their settings, and the checks of these settings."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime
from typing import Any, cast

from chancy.checks import (
    check_broker_name,
    check_flag,
    check_instance,
    check_instances,
    check_number,
    check_queue_name,
)
from chancy.errors import ConfigurationError, PushError
from chancy.job.limits import Limit, check_limits
from chancy.queue.executor_kind import EXECUTORS, check_options, executor_kind, unsupported
from chancy.queue.executor_options import ExecutorOptions
from chancy.queue.rules import Rule, check_rules
from chancy.serialization.codec import encode
from chancy.text import nearest, shown

#: The highest concurrency: jobs of one queue that one worker runs at a time.
MAX_CONCURRENCY = 100_000
#: The default broker of a queue, which also stores the queues themselves.
DEFAULT_BROKER = "postgres"
#: Why a plain function cannot have a time limit in an async queue; follows the function's name.
PLAIN_WITH_TIME = (
    "is a plain function, which an async queue runs in a thread, and a thread cannot be stopped "
    "at a time limit: make it a coroutine function, or use the executor process"
)
_EXECUTOR_NAME = re.compile(r"[a-z][a-z0-9_-]{0,47}")
#: The maximum size of broker options, in bytes of JSON.
_MAX_OPTIONS = 8_192


@dataclass(frozen=True, slots=True)
class Queue:
    """The settings of a queue. Workers read them from the database and apply changes to them.

    :param name: 1 to 128 of ``A-Z a-z 0-9 _ . : / -``.
    :param executor: how the jobs run: ``process`` (in executor processes, the default), ``thread``,
        ``async`` (in the worker's event loop), or an installed executor. To declare a queue, its
        executor must be installed; to read a stored queue, it need not be.
    :param concurrency: jobs that one worker runs at a time; None takes the executor's default
        (process: one per core, thread: 16, async: 256).
    :param tags: regular expressions, matched against whole tags. A worker serves the queue if each
        pattern matches one of its tags; the pattern ``*`` matches every worker.
    :param poll_interval_s: seconds between polls while notifications do not arrive; while they
        arrive, ten times that, at most 5, but never less than it.
    :param keep_finished: whether finished jobs are kept in the history. If not, the row is deleted
        when the job settles, and its state and result cannot be read. Failed jobs are always kept.
    :param limits: limits of each attempt, unless the job overrides them. A ``thread`` queue accepts
        a time limit only with ``ThreadOptions(cooperative=True)``; only a ``process`` queue accepts
        a memory limit.
    :param rules: limits on all workers together, enforced by the plugin ``chancy.limits``.
    :param options: options of the executor; None takes its defaults.
    :param broker: the broker that stores its jobs: ``postgres``, or the name of a broker that a
        plugin provides, such as that of the redis plugin.
    :param broker_options: options of that broker, as JSON values; the broker defines them.
    :param paused: stops claims of its jobs. Declaring an existing queue again does not change this.
    :param resume_at: when a paused queue resumes automatically, by the clock of the database.
    """

    name: str
    _: KW_ONLY
    executor: str = "process"
    concurrency: int | None = None
    tags: frozenset[str] = frozenset()
    poll_interval_s: float = 1.0
    keep_finished: bool = True
    limits: tuple[Limit, ...] = ()
    rules: tuple[Rule, ...] = ()
    options: ExecutorOptions | None = None
    broker: str = DEFAULT_BROKER
    broker_options: Mapping[str, Any] = field(default_factory=dict[str, Any], hash=False)
    paused: bool = False
    resume_at: datetime | None = None

    def __post_init__(self) -> None:
        check_queue_name(self.name)
        where = f"queue {self.name!r}"
        check_executor(self.executor, where)
        if self.concurrency is not None:
            check_concurrency(self.concurrency, where)
        check_poll_interval(self.poll_interval_s, where)
        object.__setattr__(self, "tags", check_tags(self.tags, where))
        object.__setattr__(self, "limits", check_limits(self.limits, where))
        object.__setattr__(self, "rules", check_rules(self.rules, where))
        if self.options is not None:
            check_options(self.options, self.executor, where)
        check_broker_name(self.broker, where)
        options = check_broker_options(self.broker_options, where)
        object.__setattr__(self, "broker_options", options)
        for limit in self.limits:
            if why := unsupported(limit.type, self.executor, self.options):
                raise ConfigurationError(f"{where}: {why}")
        check_flag(self.keep_finished, f"{where}: keep_finished")
        check_flag(self.paused, f"{where}: paused")
        check_resume_at(self.resume_at, self.name)

    def served_by(self, worker_tags: Iterable[str]) -> bool:
        """Whether a worker with these tags serves the queue."""
        have = tuple(worker_tags)
        return all(
            pattern == "*" or any(re.fullmatch(pattern, tag) for tag in have)
            for pattern in self.tags
        )


def queues_of(value: object) -> tuple[Queue, ...]:
    """Return the queues of an application; raises `ConfigurationError` for other values."""
    queues = check_instances(value, Queue, "queues", "pass a list of Queue(name=...)")
    by_name: dict[str, Queue] = {}
    for queue in queues:
        if by_name.setdefault(queue.name, _installed(queue)) != queue:
            raise ConfigurationError(
                f"queues: {queue.name!r} is listed twice, with different settings"
            )
    return queues


def queue_of(value: object) -> Queue:
    """Return a queue to be declared; raises `ConfigurationError` for other values."""
    return _installed(check_instance(value, Queue, "queue", "pass Queue(name=...)"))


def _installed(queue: Queue) -> Queue:
    try:
        executor_kind(queue.executor)
    except ConfigurationError as error:
        raise ConfigurationError(f"queue {queue.name!r}: {error}") from error
    return queue


def name_of(value: object) -> str:
    """Return a string as the name of a queue, which need not exist."""
    return check_instance(value, str, "name", "pass the name of a queue")


def check_declared(name: str, queues: Iterable[Queue]) -> str:
    """Return the name, or raise `ConfigurationError` if none of the queues has it."""
    names = [queue.name for queue in queues]
    if check_queue_name(name) not in names:
        near = nearest(name, names)
        hint = f" (did you mean {near!r}?)" if near else ""
        raise ConfigurationError(f"queue {name!r} is not declared{hint}: declare it first")
    return name


def check_resume_at(value: object, name: str) -> datetime | None:
    """Return the value, or raise `ConfigurationError` if it is not None or an aware datetime."""
    if value is None:
        return None
    setting = f"queue {name!r}: resume_at={shown(value)}"
    if not isinstance(value, datetime):
        raise ConfigurationError(f"{setting} must be an aware datetime")
    if value.tzinfo is None:
        raise ConfigurationError(f"{setting} has no time zone: pass an aware datetime")
    return value


def check_pause(until: datetime, now: datetime, name: str) -> None:
    """Raise `ConfigurationError` if the end of a pause has passed by the clock of the database."""
    if until <= now:
        raise ConfigurationError(
            f"queue {name!r}: resume_at={until.isoformat()} is over, so the queue would not be "
            f"paused: it is {now.isoformat(timespec='seconds')} in the database. Pass a later "
            "time, or None to pause it until resume_queue()"
        )


def check_executor(value: object, where: str) -> str:
    """Return the name of an executor, which need not be installed here."""
    if isinstance(value, str) and _EXECUTOR_NAME.fullmatch(value):
        return value
    raise ConfigurationError(
        f"{where}: there is no executor {shown(value)}: use one of {', '.join(EXECUTORS)}"
    )


def check_concurrency(value: object, where: str) -> int:
    check_number(value, f"{where}: concurrency", 1, MAX_CONCURRENCY)
    return cast(int, value)


def check_poll_interval(value: object, where: str) -> float:
    name = f"{where}: poll_interval_s"
    check_number(value, name, 0.01, 3_600, whole=False, unit="seconds")
    return float(cast(float, value))


def check_tags(value: object, where: str) -> frozenset[str]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise ConfigurationError(f"{where}: tags must be a set of patterns, not {shown(value)}")
    try:
        patterns = frozenset(value)
    except TypeError as error:
        raise ConfigurationError(f"{where}: tags must be strings: {error}") from None
    for pattern in patterns:
        if pattern == "*":
            continue
        try:
            re.compile(pattern)
        except (re.error, TypeError) as error:
            raise ConfigurationError(
                f"{where}: the tag pattern {shown(pattern)} is not a regular expression: {error}"
            ) from None
    return patterns


def check_broker_options(value: object, where: str) -> dict[str, Any]:
    """Return a copy of the options as decoded from JSON. The broker checks their names."""
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise ConfigurationError(
            f"{where}: broker_options={shown(value)} must be a dict with strings as keys"
        )
    try:
        text = encode(dict(value), what=f"{where}: broker_options", limit=_MAX_OPTIONS)
    except PushError as error:
        raise ConfigurationError(str(error)) from None
    copy: dict[str, Any] = json.loads(text)
    return copy
