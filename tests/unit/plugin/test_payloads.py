"""A codec of a third-party plugin, which has a format of its own."""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

from chancy.attempt.failure import Failure
from chancy.attempt.outcome import Raised, Returned
from chancy.plugin.payloads import Payload, StoredPayloads
from chancy.states import State
from tests.support.claims import claimed
from tests.unit.results.shelf import queued


class Codec:
    def encode(self, func: str, payload: Payload, text: str) -> str:
        return json.dumps({"$chancy": {"mine": text}})

    def decode(self, func: str, payload: Payload, text: str) -> str:
        match json.loads(text):
            case {"$chancy": {"mine": str(plain)}}:
                return plain
            case _:
                return text


PAYLOADS = StoredPayloads(Codec())


def test_checkpoints_are_decoded() -> None:
    meta = '{"checkpoints":{"paid":{"value":1,"attempt":1}}}'
    stored = PAYLOADS.meta("a.b", meta)
    assert "mine" in stored
    assert PAYLOADS.claim(claimed()._replace(meta=stored)).meta == json.dumps(json.loads(meta))


def test_results_are_decoded() -> None:
    stored = PAYLOADS.outcome(claimed(), Returned('{"a": 1}'))
    assert isinstance(stored, Returned)
    assert PAYLOADS.result("a.b", json.loads(stored.result or "")) == {"a": 1}


def read(errors: tuple[dict[str, Any], ...]) -> Any:
    job = queued(uuid4(), State.FAILED, None, *errors)
    return PAYLOADS.job(job).errors


def test_failures_are_decoded() -> None:
    stored = PAYLOADS.outcome(claimed(), Raised(Failure.named("shop.Oops", "secret")))
    assert isinstance(stored, Raised)
    assert stored.failure.message == "(encoded)"
    [error] = read((stored.failure.as_json(),))
    assert error["message"] == "secret"


def test_an_argument_of_an_exception_is_not_a_failure() -> None:
    plain = Failure.of(ValueError({"$chancy": 1})).as_json()
    assert read((plain,)) == (plain,)


def test_log_lines_are_decoded() -> None:
    stored = PAYLOADS.line("a.b", "paid")
    assert "mine" in stored
    assert PAYLOADS.read_line(stored) == "paid"
