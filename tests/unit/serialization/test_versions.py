"""Versions of a function's arguments."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from chancy import job
from chancy.errors import ConfigurationError, InvalidArguments, PayloadTooLarge, UnknownFunction
from chancy.serialization.signature import Signature
from chancy.serialization.versions import Upgrade


def rename_address(arguments: dict[str, Any], version: int) -> Mapping[str, Any]:
    if version == 1:
        arguments["to"] = arguments.pop("address")
    return {"copies": 1, **arguments}


@job(version=3, upgrade=rename_address)
def send(to: str, copies: int) -> None: ...


def plain(to: str) -> None: ...


SEND = Signature.of(send, "shop.send")
PLAIN = Signature.of(plain, "shop.plain")


def test_arguments_are_stored_with_their_version_and_read_without_it() -> None:
    stored = SEND.encode({"to": "a@b.c", "copies": 2})
    assert json.loads(stored) == {"$chancy": {"version": 3}, "to": "a@b.c", "copies": 2}
    assert SEND.decode(stored) == {"to": "a@b.c", "copies": 2}


def test_older_arguments_are_upgraded_and_then_validated() -> None:
    assert SEND.decode('{"address": "a@b.c"}') == {"to": "a@b.c", "copies": 1}
    second = '{"to": "a@b.c", "$chancy": {"version": 2}}'
    assert SEND.decode(second) == {"to": "a@b.c", "copies": 1}
    with pytest.raises(InvalidArguments, match="to"):
        SEND.decode('{"address": 7}')


def test_arguments_that_a_caller_passes_are_of_the_current_version() -> None:
    """`chancy push` passes them."""
    assert SEND.decode_given('{"to": "a@b.c", "copies": 2}') == {"to": "a@b.c", "copies": 2}
    assert PLAIN.decode_given('{"to": "a@b.c"}') == {"to": "a@b.c"}
    with pytest.raises(InvalidArguments, match="address"):
        SEND.decode_given('{"address": "a@b.c", "copies": 2}')


def test_a_job_without_arguments_is_upgraded_too() -> None:
    @job(version=2, upgrade=lambda arguments, version: {"to": f"of version {version}"})
    def greet(to: str) -> None: ...

    of = Signature.of(greet, "shop.greet")
    assert of.decode("{}") == of.decode(None) == {"to": "of version 1"}


@pytest.mark.parametrize("signature", [SEND, PLAIN])
def test_a_later_version_is_an_unknown_function(signature: Signature) -> None:
    with pytest.raises(UnknownFunction, match=r"version 4, and this process knows [13]"):
        signature.decode('{"to": "a@b.c", "copies": 1, "$chancy": {"version": 4}}')


@pytest.mark.parametrize("signature", [SEND, PLAIN])
@pytest.mark.parametrize("mark", ["4", '{"version": 0}', '{"version": 2, "more": 1}'])
def test_another_format_is_refused(signature: Signature, mark: str) -> None:
    with pytest.raises(InvalidArguments, match="later version of chancy"):
        signature.decode(f'{{"to": "a@b.c", "copies": 1, "$chancy": {mark}}}')


def test_a_wrong_nested_value_is_refused_whatever_its_keys() -> None:
    with pytest.raises(InvalidArguments, match="to"):
        PLAIN.decode('{"to": {"$chancy": 1}}')


def test_an_upgrade_that_returns_no_arguments_is_refused() -> None:
    @job(version=2, upgrade=lambda arguments, version: None)  # type: ignore[arg-type, return-value]
    def work() -> None: ...

    with pytest.raises(InvalidArguments, match="upgrade= returned None"):
        Signature.of(work, "shop.work").decode("{}")


def test_an_upgrade_that_returns_what_json_cannot_hold_is_refused() -> None:
    @job(version=2, upgrade=lambda arguments, version: {"at": datetime(2031, 5, 1, tzinfo=UTC)})
    def work(at: datetime) -> None: ...

    with pytest.raises(
        InvalidArguments, match=r"shop\.work: upgrade= returned .* of version 1: .*plain JSON"
    ):
        Signature.of(work, "shop.work").decode("{}")


def test_the_version_counts_towards_the_limit() -> None:
    arguments = {"to": "a@b.c", "copies": 2}
    size = len(SEND.encode(arguments))
    assert SEND.encode(arguments, size)
    with pytest.raises(PayloadTooLarge):
        SEND.encode(arguments, size - 1)


@pytest.mark.parametrize(
    ("version", "upgrade", "message"),
    [
        (0, None, "version=0 must be a whole number"),
        (2, None, "version=2 needs upgrade="),
        (1, rename_address, "upgrade= needs a version="),
    ],
)
def test_a_wrong_declaration_is_refused(
    version: int, upgrade: Upgrade | None, message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        job(version=version, upgrade=upgrade)(plain)
