"""Queues in Redis: declaration, pausing, and their encoding as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from chancy.errors import ConfigurationError
from chancy.job.limits import encode_limits, limits_from
from chancy.plugins.redis import records
from chancy.plugins.redis.settings import history_of
from chancy.plugins.redis.transport.shard import ShardClient
from chancy.queue.executor_kind import decode_options
from chancy.queue.executor_options import encode_options
from chancy.queue.queue import Queue
from chancy.queue.rules import GlobalConcurrency, RateLimit, Rule, decode_rules, encode_rules


class Queues:
    """The queues of a shard."""

    def __init__(self, client: ShardClient) -> None:
        self._client = client

    async def declare(self, queue: Queue, *, upsert: bool) -> Queue:
        settings, paused = await self._client.run(
            "declare",
            queue.name,
            encode_queue(queue),
            0 if queue.keep_finished else 1,
            _encode_pause(queue.resume_at) if queue.paused else "",
            int(upsert),
            history_of(queue, self._client.settings)[0],
            _encode_rules(queue.rules),
        )
        return decode_queue(queue.name, settings, paused, datetime.now(UTC))

    async def all(self) -> Sequence[Queue]:
        clock, *rows = await self._client.run("queues")
        now = records.datetime_of(float(clock))
        found = [
            decode_queue(rows[at].decode(), rows[at + 1], rows[at + 2], now)
            for at in range(0, len(rows), 3)
        ]
        return sorted(found, key=lambda queue: queue.name)

    async def pause(self, queue: str, resume_at: datetime | None) -> bool:
        return bool(await self._client.run("pause", queue, _encode_pause(resume_at)))

    async def resume(self, queue: str) -> bool:
        return bool(await self._client.run("pause", queue, ""))

    async def delete(self, queue: str) -> bool:
        return bool(await self._client.run("delete_queue", queue))


def encode_queue(queue: Queue) -> str:
    return json.dumps(
        {
            "executor": queue.executor,
            "concurrency": queue.concurrency,
            "tags": sorted(queue.tags),
            "poll_interval_s": queue.poll_interval_s,
            "keep_finished": queue.keep_finished,
            "limits": encode_limits(queue.limits),
            "rules": encode_rules(queue.rules),
            "options": encode_options(queue.options),
            "broker": queue.broker,
            "broker_options": dict(queue.broker_options),
        },
        sort_keys=True,
    )


def decode_queue(name: str, settings: bytes, paused: bytes, now: datetime) -> Queue:
    """A queue as of `now`; a pause with a `resume_at` in the past is over."""
    found: dict[str, Any] = json.loads(settings)
    limits, options = found.pop("limits"), found.pop("options")
    resume_at = None if paused in (b"", b"inf") else records.datetime_of(float(paused))
    queue = Queue(
        name=name,
        tags=frozenset(found.pop("tags")),
        rules=decode_rules(found.pop("rules", None), f"queue {name!r}"),
        limits=limits_from(json.loads(limits) if limits else {}),
        options=decode_options(options, found["executor"]),
        paused=paused != b"",
        resume_at=resume_at,
        **found,
    )
    over = resume_at is not None and resume_at <= now
    return replace(queue, paused=queue.paused and not over)


def check_rules(queue: Queue) -> None:
    """Raise `ConfigurationError` for a rule that Redis cannot enforce."""
    for rule in queue.rules:
        if not isinstance(rule, GlobalConcurrency | RateLimit) or rule.by is not None:
            raise ConfigurationError(
                f"queue {queue.name!r}: the redis broker cannot enforce {rule}: it enforces "
                "GlobalConcurrency and RateLimit for a whole queue; others need the broker postgres"
            )


def _encode_rules(rules: Sequence[Rule]) -> str:
    """The rules as the scripts read them: see ``_rules.lua``."""
    most, rate, burst = "-", "-", "-"
    for rule in rules:
        match rule:
            case GlobalConcurrency(limit=limit):
                most = str(limit)
            case RateLimit():
                rate, burst = repr(rule.allowed / rule.per_s), str(rule.burst)
            case _:
                raise AssertionError(rule)  # refused by check_rules
    return f"{most} {rate} {burst}" if rules else ""


def _encode_pause(resume_at: datetime | None) -> str:
    return "inf" if resume_at is None else repr(records.seconds_of(resume_at))
