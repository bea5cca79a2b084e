"""Rules of uniqueness, without a database."""

from __future__ import annotations

import hashlib
from datetime import timedelta
from typing import Any

import pytest

from chancy import Unique
from chancy.errors import ConfigurationError, InvalidArguments

HOUR = timedelta(hours=1)


def key(rule: Unique, arguments: str = "{}", func: str = "a.b", queue: str = "q") -> bytes:
    return rule.of(func, queue, arguments).key


def test_a_key_is_made_as_every_release_makes_it() -> None:
    """Another hash would let a job of the release before be pushed again."""
    assert key(Unique(key="é")) == hashlib.sha256("function\na.b\nkey\né".encode()).digest()
    text = 'queue\nq\narguments\n{"a":[1,null],"é":"x"}'
    found = key(Unique(scope="queue"), '{"\\u00e9": "x", "a": [1, null]}')
    assert found == hashlib.sha256(text.encode()).digest()


def test_the_order_and_the_spaces_of_arguments_do_not_count() -> None:
    assert key(Unique(), '{"a": {"c":1, "b":2}}') == key(Unique(), '{"a":{"b":2,"c":1}}')


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('{"a":1}', '{"a":1.0}'),
        ('{"a":1}', '{"a":"1"}'),
        ('{"a":1}', '{"a":true}'),
        ('{"a":null}', "{}"),
        ('{"a":[1,2]}', '{"a":[2,1]}'),
        ('{"a":9007199254740993}', '{"a":9007199254740992}'),
    ],
)
def test_arguments_that_differ_in_their_json_are_two(one: str, other: str) -> None:
    assert key(Unique(), one) != key(Unique(), other)


def test_chosen_arguments_alone_are_compared() -> None:
    rule = Unique(by=("day", "to"))
    assert key(rule, '{"to":1,"day":2,"n":3}') == key(rule, '{"day":2,"to":1,"n":4}')
    assert key(rule, '{"to":1,"day":2}') != key(rule, '{"to":2,"day":1}')
    assert key(rule, '{"to":1,"day":2}') == key(Unique(by=("to", "day", "to")), '{"to":1,"day":2}')
    # By all of them is another rule only where there are others.
    assert key(rule, '{"to":1,"day":2}') == key(Unique(), '{"to":1,"day":2}')


def test_the_version_of_arguments_does_not_count() -> None:
    for rule in (Unique(), Unique(by=("to",)), Unique(key="k")):
        assert key(rule, '{"$chancy":{"version":2},"to":1}') == key(rule, '{"to":1}')


def test_encrypted_arguments_are_compared_as_they_are_stored() -> None:
    sealed = '{"$chancy":{"encrypted":"k","data":"a"}}'
    assert key(Unique(), sealed) != key(Unique(), sealed.replace('"a"', '"b"'))


def test_an_argument_that_is_missing_is_named() -> None:
    with pytest.raises(InvalidArguments, match=r"needs the argument 'day'.*it has to, n\)"):
        key(Unique(by=("day", "to")), '{"to":1,"n":2}')


def test_a_scope_selects_whose_jobs_are_compared() -> None:
    places = [("a.b", "q"), ("a.c", "q"), ("a.b", "r")]
    for scope, count in (("function", 2), ("queue", 2), ("global", 1)):
        rule = Unique(key="k", scope=scope)  # type: ignore[arg-type]
        assert len({key(rule, func=func, queue=queue) for func, queue in places}) == count
    # A text is never equal to arguments, or to that of another scope.
    scopes = ("function", "queue", "global")
    rules: list[Any] = [Unique(key="{}", scope=scope) for scope in scopes]  # type: ignore[arg-type]
    rules += [Unique(scope=scope) for scope in scopes]  # type: ignore[arg-type]
    assert len({key(rule, func="x.y", queue="x.y") for rule in rules}) == 6


def test_calls_that_reach_a_broker() -> None:
    found = Unique(key="k", until="started", period=HOUR, on_conflict="raise").of("a.b", "q", "{}")
    assert found[1:] == ("raise", True, 3600.0, None)
    # A debounced job takes over what is pushed, and has its key until it starts.
    rule = Unique(key="k", debounce=timedelta(seconds=2), cap=HOUR)
    assert rule.of("a.b", "q", "{}")[1:] == ("replace", True, None, 3600.0)
    assert Unique(key="k").of("a.b", "q", "{}")[1:] == ("skip", False, None, None)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"key": ""}, "a string of 1 to 255 characters"),
        ({"key": "x" * 256}, "a string of 1 to 255 characters"),
        ({"key": "a\x00b"}, "without NUL"),
        ({"key": "\ud800"}, "unpaired surrogate"),
        ({"key": 7}, "key=7 must be a string"),
        ({"by": "to"}, "by='to' must be names of arguments"),
        ({"by": ("to", 3)}, "must be names of arguments"),
        ({"by": ("",)}, "must be names of arguments"),
        ({"key": "k", "by": ("to",)}, "pass key= or by=, not both"),
        ({"scope": "table"}, "scope='table' must be one of 'function', 'queue', 'global'"),
        ({"until": "claimed"}, "until='claimed' must be one of 'finished', 'started'"),
        ({"on_conflict": "ignore"}, "must be one of 'skip', 'replace', 'raise'"),
        ({"period": timedelta()}, "must be a timedelta from 1e-06 seconds to 3,660 days"),
        ({"period": 60}, "period=60 must be a timedelta"),
        ({"period": timedelta(days=3_661)}, "seconds to 3,660 days"),
        ({"scope": "queue", "on_conflict": "replace"}, "use scope='function' with"),
        ({"scope": "global", "debounce": HOUR, "cap": HOUR}, "use scope='function' with"),
        ({"debounce": HOUR}, "needs a cap="),
        ({"debounce": HOUR, "cap": timedelta(seconds=1)}, "needs a cap= that is not shorter"),
        ({"cap": HOUR}, "no effect without debounce="),
        ({"debounce": HOUR, "cap": HOUR, "on_conflict": "raise"}, "leave out on_conflict="),
        ({"debounce": HOUR, "cap": HOUR, "period": HOUR}, "leave out on_conflict="),
        ({"debounce": HOUR, "cap": HOUR, "until": "finished"}, "leave out on_conflict="),
    ],
)
def test_an_invalid_rule_raises_an_error_with_advice(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match="Unique: ") as caught:
        Unique(**given)
    assert said in str(caught.value)
