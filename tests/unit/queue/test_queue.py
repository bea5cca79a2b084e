"""Queues: what may be declared, and which workers serve it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import FrozenInstanceError, replace
from datetime import UTC, datetime
from typing import Any

import pytest

from chancy import AsyncOptions, Limit, ProcessOptions, ThreadOptions
from chancy.errors import ConfigurationError
from chancy.queue.queue import MAX_CONCURRENCY, Queue, queues_of
from chancy.queue.rules import (
    FairShare,
    RateLimit,
    Rule,
    Sequential,
    UnknownRules,
    decode_rules,
    plain_rules,
)


def test_the_defaults() -> None:
    queue = Queue(name="default")
    assert (queue.executor, queue.concurrency, queue.tags) == ("process", None, frozenset())
    assert (queue.poll_interval_s, queue.keep_finished) == (1.0, True)
    assert (queue.limits, queue.options) == ((), None)
    assert (queue.paused, queue.resume_at) == (False, None)


def test_the_name_needs_no_keyword_and_all_else_does() -> None:
    assert Queue("mail", broker="redis") == Queue(name="mail", broker="redis")
    with pytest.raises(TypeError):
        Queue("mail", "async")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


def test_a_queue_is_a_value() -> None:
    queue = Queue(name="a", tags=frozenset({"x"}))
    assert queue == Queue(name="a", tags=frozenset({"x"}))
    assert len({queue, replace(queue)}) == 1
    with pytest.raises(FrozenInstanceError):
        queue.name = "b"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"name": "a b"}, "'a b' is not a valid queue name"),
        ({"executor": "no fibre"}, "there is no executor 'no fibre': use one of process, thread"),
        ({"executor": None}, "there is no executor None"),
        ({"concurrency": 0}, "concurrency=0 must be a whole number from 1 to 100,000"),
        ({"concurrency": MAX_CONCURRENCY + 1}, "concurrency=100001"),
        ({"concurrency": True}, "concurrency=True"),
        ({"poll_interval_s": 0}, "poll_interval_s=0 must be a number from 0.01 to 3,600 seconds"),
        ({"poll_interval_s": math.nan}, "poll_interval_s=nan"),
        ({"tags": "gpu"}, "tags must be a set of patterns, not 'gpu'"),
        ({"tags": {"("}}, "the tag pattern '(' is not a regular expression"),
        ({"tags": {5}}, "the tag pattern 5 is not a regular expression"),
        ({"limits": 30}, "limits=30 must be a list of Limit"),
        ({"limits": [Limit.time(1), Limit.time(2)]}, "there are two limits of time"),
        ({"options": {"max_jobs": 5}}, "the executor process takes ProcessOptions, not "),
        ({"executor": "async", "options": ThreadOptions()}, "the executor async takes Async"),
        ({"resume_at": datetime(2030, 1, 1)}, "has no time zone: pass an aware datetime"),  # noqa: DTZ001
    ],
)
def test_unusable_settings_are_refused_with_the_reason(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(said)) as caught:
        Queue(**{"name": "shop", **settings})
    if "name" not in settings:
        assert str(caught.value).startswith("queue 'shop': ")


@pytest.mark.parametrize(
    ("executor", "limit", "options"),
    [
        ("process", Limit.time(5), None),
        ("process", Limit.memory(2**28), ProcessOptions(max_jobs=5)),
        ("async", Limit.time(5), AsyncOptions()),
        ("thread", Limit.time(5), ThreadOptions(cooperative=True)),
    ],
)
def test_an_executor_takes_the_limits_that_it_can_keep_to(
    executor: Any, limit: Limit, options: Any
) -> None:
    queue = Queue(name="a", executor=executor, limits=[limit], options=options)  # type: ignore[arg-type]
    assert queue.limits == (limit,)


@pytest.mark.parametrize(
    ("executor", "limit", "options", "said"),
    [
        ("thread", Limit.time(5), None, "a thread cannot be stopped, so a thread queue takes no"),
        ("thread", Limit.time(5), ThreadOptions(), "ThreadOptions(cooperative=True)"),
        (
            "thread",
            Limit.memory(2**28),
            ThreadOptions(cooperative=True),
            "the executor thread share",
        ),
        ("async", Limit.memory(2**28), None, "the executor async share the memory of"),
    ],
)
def test_an_executor_refuses_the_limits_that_it_cannot_keep_to(
    executor: Any, limit: Limit, options: Any, said: str
) -> None:
    with pytest.raises(ConfigurationError, match=f"^queue 'a': .*{re.escape(said)}"):
        Queue(name="a", executor=executor, limits=(limit,), options=options)


def test_a_time_with_a_zone_is_kept() -> None:
    at = datetime(2030, 1, 1, tzinfo=UTC)
    assert Queue(name="a", paused=True, resume_at=at).resume_at == at


def test_tags_become_a_set() -> None:
    queue = Queue(name="a", tags=["x", "y", "x"])  # type: ignore[arg-type]
    assert queue.tags == {"x", "y"}
    assert queue.served_by(iter(["y", "x"]))


@pytest.mark.parametrize(
    ("patterns", "tags", "served"),
    [
        ((), (), True),
        ((), ("gpu",), True),
        (("gpu",), (), False),
        (("gpu",), ("gpu",), True),
        (("gpu",), ("gpu-2",), False),
        (("gpu.*",), ("gpu-2",), True),
        (("gpu", "eu"), ("gpu",), False),
        (("gpu", "eu"), ("eu", "gpu", "big"), True),
        (("*",), (), True),
        (("*", "gpu"), ("cpu",), False),
        (("a|b",), ("b",), True),
        ((".*",), (), False),
        (("[A-Z]{2}",), ("EU",), True),
    ],
)
def test_a_worker_serves_a_queue_if_each_pattern_matches_a_whole_tag(
    patterns: tuple[str, ...], tags: tuple[str, ...], served: bool
) -> None:
    assert Queue(name="a", tags=frozenset(patterns)).served_by(tags) is served


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (lambda: Sequential("a\x00b"), "must be a path into the arguments"),
        (lambda: RateLimit(1, by="a.\ud800"), "must be a path into the arguments"),
        (lambda: FairShare("a", weights={42: 3}), "weights: 42 must be a string"),  # type: ignore[dict-item]
        (lambda: FairShare("a", weights={"b\x00": 3}), "must be a string, the value of the key"),
    ],
)
def test_rules_that_could_not_be_stored_are_refused(rule: Callable[[], Rule], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        rule()


@pytest.mark.parametrize(
    "text", ["{}", "7", '[{"rule": "quota"}]', '[{"rule": "rate"}]', '[{"rule": "fair", "by": 5}]']
)
def test_rules_that_cannot_be_read_are_kept_as_they_are(text: str) -> None:
    rules = decode_rules(text)
    assert rules == (UnknownRules(json.loads(text)),)
    assert plain_rules(Queue(name="a", rules=rules).rules) == json.loads(text)


def test_rules_that_are_nested_too_deeply_are_kept() -> None:
    text = "[" * 20_000 + "]" * 20_000
    assert decode_rules(text) == (UnknownRules(text),)


def test_an_application_lists_a_queue_once() -> None:
    with pytest.raises(ConfigurationError, match="'a' is listed twice, with different settings"):
        queues_of([Queue(name="a"), Queue(name="b"), Queue(name="a", concurrency=2)])
    assert len(queues_of([Queue(name="a"), Queue(name="a")])) == 2
