"""ExecutorOptions of executors: what may be one, and how they are stored."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import pytest

from chancy import AsyncOptions, ProcessOptions, ThreadOptions
from chancy.errors import ConfigurationError
from chancy.queue.executor_kind import EXECUTORS, check_options, decode_options, executor_kind
from chancy.queue.executor_options import ExecutorOptions, encode_options

WHOLE = "must be a whole number from 1 to "


@pytest.mark.parametrize(
    ("kind", "given", "said"),
    [
        (ProcessOptions, {"max_jobs": 0}, f"max_jobs=0 {WHOLE}"),
        (
            ProcessOptions,
            {"max_memory_bytes": 1_000_000},
            "max_memory_bytes=1000000 must be a whole number from 33,554,432 to ",
        ),
        (ProcessOptions, {"initializer": "start"}, "'start' is not the path of a function"),
        (ProcessOptions, {"initializer": 5}, "5 is not the path of a function"),
        (ProcessOptions, {"grace_s": -1}, "grace_s=-1 must be a number from 0 to 3,600 seconds"),
        (ProcessOptions, {"grace_s": math.nan}, "grace_s=nan must be"),
        (ProcessOptions, {"weight": 0}, "weight=0 must be a whole number from 1 to 100"),
        (AsyncOptions, {"grace_s": 3_601}, "grace_s=3601 must be"),
        (AsyncOptions, {"grace_s": 10**400}, "must be a number from 0 to 3,600 seconds"),
        (ThreadOptions, {"cooperative": 1}, "cooperative=1 must be True or False"),
        (ThreadOptions, {"cooperative": "yes"}, "cooperative='yes' must be True or False"),
    ],
)
def test_unusable_settings_are_refused_by_name(
    kind: type[ExecutorOptions], given: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(said)):
        kind(**given)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (None, None),
        (ProcessOptions(), "{}"),
        (ThreadOptions(cooperative=True), '{"cooperative": true}'),
        (AsyncOptions(grace_s=0), '{"grace_s": 0}'),
        (
            ProcessOptions(
                max_jobs=1,
                max_memory_bytes=32 * 2**20,
                initializer="shop.start.warm",
                grace_s=0.5,
            ),
            '{"max_jobs": 1, "max_memory_bytes": 33554432, '
            '"initializer": "shop.start.warm", "grace_s": 0.5}',
        ),
    ],
)
def test_only_non_default_options_are_stored(
    options: ExecutorOptions | None, text: str | None
) -> None:
    assert encode_options(options) == text
    names: dict[type[Any], str] = {type(executor_kind(name).options()): name for name in EXECUTORS}
    assert decode_options(text, names.get(type(options), "process")) == options


def test_each_executor_takes_its_own() -> None:
    for name in EXECUTORS:
        check_options(executor_kind(name).options(), name, "shop")
        for other in EXECUTORS:
            if other != name:
                kind = type(executor_kind(name).options()).__name__
                said = f"^shop: the executor {name} takes {kind}, not "
                with pytest.raises(ConfigurationError, match=said):
                    check_options(executor_kind(other).options(), name, "shop")


@pytest.mark.parametrize(
    ("text", "executor", "said"),
    [
        ("{", "process", "the options are not JSON: "),
        ("[" * 100_000, "process", "the options are not JSON: "),
        ("null", "thread", "the options are not a JSON object: None"),
        ("[]", "thread", "the options are not a JSON object: []"),
        (
            '{"cooperative": true}',
            "async",
            "the executor async has the options grace_s, not 'cooperative'",
        ),
        ('{"": 1, "self": 2}', "async", "the executor async has the options grace_s, not ''"),
        ('{"max_jobs": "many"}', "process", "max_jobs='many' must be a whole number"),
        (json.dumps({"grace_s": 10**400}), "process", "must be a number from 0 to 3,600 seconds"),
        ('{"initializer": "os.system; x"}', "process", "is not the path of a function"),
    ],
)
def test_unknown_options_in_a_row_are_refused_with_the_reason(
    text: str, executor: str, said: str
) -> None:
    with pytest.raises(ConfigurationError, match=f"^.*{re.escape(said)}"):
        decode_options(text, executor)
