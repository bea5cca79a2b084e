"""What a failure says beside the error's own text: notes, causes; and its way through JSON."""

from __future__ import annotations

from typing import Any

import pytest

from chancy.attempt.failure import MAX_CAUSES, MAX_NOTE, MAX_NOTES, Failure
from tests.unit.attempt.test_failure import Exiting, chained, check, circular


def behind(build: str) -> BaseException:
    """An error of which others are the reason, in one way or another."""
    try:
        try:
            raise KeyError("first")
        except KeyError as first:
            match build:
                case "cause":
                    raise ValueError("second") from first
                case "context":
                    raise ValueError("second")  # noqa: B904
                case _:
                    raise ValueError("second") from None
    except ValueError as second:
        return second


@pytest.mark.parametrize(
    ("build", "causes"),
    [
        ("cause", (("builtins.KeyError", "'first'"),)),
        ("context", (("builtins.KeyError", "'first'"),)),
        ("suppressed", ()),
    ],
)
def test_causes_of_an_error(build: str, causes: tuple[tuple[str, str], ...]) -> None:
    assert Failure.of(behind(build)).causes == causes


def test_the_nearest_cause_comes_first_and_not_all_of_them() -> None:
    causes = Failure.of(chained(50)).causes
    assert causes == tuple(("builtins.KeyError", str(number)) for number in range(48, 38, -1))
    assert len(causes) == MAX_CAUSES


def test_errors_that_cause_each_other_are_named_once() -> None:
    assert Failure.of(circular()).causes == (("builtins.ValueError", "two"),)
    itself = ValueError("itself")
    itself.__context__ = None
    itself.__cause__ = itself
    assert Failure.of(itself).causes == ()


def test_a_cause_without_a_message_is_named_by_its_type() -> None:
    error = ValueError("plain")
    error.__cause__ = Exiting()
    assert Failure.of(error).causes[0][1] == "(the message cannot be formatted: SystemExit)"


def test_notes_are_kept_in_order_and_not_all_of_them() -> None:
    error = ValueError("with notes")
    for number in range(50):
        error.add_note(f"note {number}" + "\0" * (number == 1) + "x" * (number == 2) * 5_000)
    notes = Failure.of(error).notes
    assert len(notes) == MAX_NOTES
    assert notes[:2] == ("note 0", "note 1\\x00")
    assert len(notes[2]) <= MAX_NOTE


@pytest.mark.parametrize("garbage", [5, None, object(), [Exiting()], "text", iter(())])
def test_notes_that_are_none_do_no_harm(garbage: object) -> None:
    error = ValueError("plain")
    error.__notes__ = garbage  # type: ignore[assignment]
    failure = Failure.of(error)
    assert failure.message == "plain"
    check(failure)
    assert all(type(note) is str and len(note) <= MAX_NOTE for note in failure.notes)


@pytest.mark.parametrize(
    "data", [{}, {"types": 5, "message": "", "trace": ""}, {"types": [], "message": "x"}]
)
def test_invalid_failures_are_refused(data: dict[str, Any]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        Failure.from_json(data)


def test_a_failure_of_an_older_version_has_no_notes_or_causes() -> None:
    failure = Failure.from_json({"types": ["shop.Oops"], "message": "oops", "trace": ""})
    assert (failure.notes, failure.causes) == ((), ())
