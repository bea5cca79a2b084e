"""The encoding of queues: their settings as JSON, and their rules and pauses for scripts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields, replace
from datetime import datetime
from typing import Any

from chancy.errors import ConfigurationError
from chancy.job.limits import encode_limits, limits_from
from chancy.plugins.redis import records
from chancy.queue.executor_kind import decode_options
from chancy.queue.executor_options import encode_options
from chancy.queue.queue import Queue
from chancy.queue.rules import GlobalConcurrency, RateLimit, Rule, decode_rules, encode_rules


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
    """A queue as of `now`; a pause with a `resume_at` in the past is over.

    Settings of a later release are left out.
    """
    stored: dict[str, Any] = json.loads(settings)
    found = {field.name: stored[field.name] for field in fields(Queue) if field.name in stored}
    limits, options = found.pop("limits"), found.pop("options")
    resume_at = None if paused in (b"", b"inf") else records.datetime_of(float(paused))
    queue = Queue(
        name=name,
        tags=frozenset(found.pop("tags")),
        rules=decode_rules(found.pop("rules", None)),
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


def encode_rules_for_scripts(rules: Sequence[Rule]) -> str:
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


def encode_pause(resume_at: datetime | None) -> str:
    return "inf" if resume_at is None else repr(records.seconds_of(resume_at))
