"""Encodes payloads of jobs with a plugin's codec: arguments, results, failures, checkpoints."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from typing import Any, Protocol

from chancy.attempt.claim import Claim
from chancy.attempt.failure import Failure
from chancy.attempt.outcome import Outcome, Raised, Returned
from chancy.context.checkpoints import KEY as CHECKPOINTS
from chancy.errors import UnreadablePayload
from chancy.job.definition import QueuedJob
from chancy.serialization.sealed import MARK, key_of, marked, redacted, stored_json

logger = logging.getLogger("chancy.plugins")

#: Failures of chancy itself, which contain no data of the job.
_OWN = frozenset(
    {
        "chancy.errors.UnknownFunction",
        "chancy.errors.UnknownVersion",
        "chancy.errors.UnreadablePayload",
        "chancy.errors.UnsupportedLimit",
    }
)


class Payload(StrEnum):
    """What a `PayloadCodec` encodes."""

    ARGUMENTS = "arguments"
    RESULT = "result"
    #: A JSON object with the message, the traceback, the notes and the causes of an exception.
    FAILURE = "failure"
    #: The values of a job's checkpoints.
    CHECKPOINTS = "checkpoints"
    #: A JSON string: a line that a job has logged, for the plugin `JobLogs`.
    LOG = "log lines"


class PayloadCodec(Protocol):
    """Converts payloads to the JSON that is stored, and back. Must be sync and fast.

    Called in the event loops of workers and in any thread of a caller.
    """

    def encode(self, func: str, payload: Payload, text: str) -> str:
        """Return the JSON string to store instead of a JSON string, or the same string.

        The replacement is an object with the key ``$chancy``. Its value is up to you, except that
        ``{"encrypted": …, "data": …}`` is shown as encrypted.

        :param func: the path of the job's function; "" for a signal, and to decode a log line.
        """
        ...

    def decode(self, func: str, payload: Payload, text: str) -> str:
        """Return the JSON string that was encoded. Called only for strings with the key
        ``$chancy``.

        Return a string that is not encoded unchanged. A workflow may have added results of its
        steps to the object of encoded arguments; these may be encoded, too.

        :raises UnreadablePayload: it cannot be decoded.
        """
        ...


class StoredPayloads:
    """Applies a codec to jobs, claims and outcomes."""

    def __init__(self, codec: PayloadCodec) -> None:
        self._codec = codec

    def arguments(self, func: str, text: str) -> str:
        """Encode valid arguments for storage. Empty arguments are not changed.

        :raises Exception: the exception with which the codec refuses them.
        """
        return text if text == "{}" else self._codec.encode(func, Payload.ARGUMENTS, text)

    def plain(self, func: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Decode stored arguments, which are decoded from JSON, for the function.

        :raises UnreadablePayload: they cannot be decoded.
        """
        text = json.dumps(arguments)
        if MARK not in text:
            return arguments
        found: Mapping[str, Any] = json.loads(self._codec.decode(func, Payload.ARGUMENTS, text))
        return found

    def meta(self, func: str, text: str) -> str:
        """Encode keys of a job's meta for storage."""
        if not text.startswith(f'{{"{CHECKPOINTS}":'):
            return text
        checkpoints = self._codec.encode(func, Payload.CHECKPOINTS, text[len(CHECKPOINTS) + 4 : -1])
        return f'{{"{CHECKPOINTS}":{checkpoints}}}'

    def claim(self, claim: Claim) -> Claim:
        """Decode the arguments and checkpoints of a claim, for the function.

        :raises UnreadablePayload: they cannot be decoded.
        """
        arguments, meta = claim.arguments, claim.meta
        if arguments is not None and MARK in arguments:
            claim = claim._replace(
                arguments=self._codec.decode(claim.func, Payload.ARGUMENTS, arguments)
            )
        if meta is not None and MARK in meta:
            found = json.loads(meta)
            if marked(found.get(CHECKPOINTS)):
                found[CHECKPOINTS] = self._value(
                    claim.func, Payload.CHECKPOINTS, found[CHECKPOINTS]
                )
                claim = claim._replace(meta=json.dumps(found))
        return claim

    def outcome(self, claim: Claim, outcome: Outcome) -> Outcome:
        """Encode the result or failure of an outcome for storage."""
        match outcome:
            case Returned(str(result), elapsed_s):
                try:
                    text = self._codec.encode(claim.func, Payload.RESULT, result)
                except Exception as error:
                    return Raised(Failure.of(error), elapsed_s, error=error)
                return Returned(text, elapsed_s)
            case Raised(failure) if failure.types[0] not in _OWN:
                stored = self._failure(claim, failure)
                if stored is failure:
                    return outcome
                # The exception also contains the message, and would be logged.
                return replace(outcome, failure=stored, error=None)
            case _:
                return outcome

    def _failure(self, claim: Claim, failure: Failure) -> Failure:
        text = json.dumps(failure.as_json())
        try:
            encoded = self._codec.encode(claim.func, Payload.FAILURE, text)
        except Exception:
            logger.exception("failure_not_encoded job=%s", claim.id)
            return Failure(types=failure.types, message="(the failure could not be encoded)")
        if encoded == text:
            return failure
        value = json.loads(encoded)
        message = "(encoded)" if key_of(value) is None else str(redacted(value))
        return Failure(types=failure.types, message=message, args=(value,))

    def line(self, func: str, line: str) -> str:
        """Encode a logged line of a job for storage; if that fails, return a note instead."""
        text = json.dumps(line)
        try:
            encoded = self._codec.encode(func, Payload.LOG, text)
        except Exception:
            logger.exception("log_line_not_encoded func=%s", func)
            return "(the line could not be encoded)"
        return line if encoded == text else encoded

    def read_line(self, stored: str) -> str:
        """Decode a stored line.

        :raises UnreadablePayload: it cannot be decoded.
        """
        value = stored_json(stored)
        line = None if value is None else self._value("", Payload.LOG, value)
        return line if isinstance(line, str) else stored

    def result(self, func: str, value: Any) -> Any:
        """Decode a stored result, which is decoded from JSON.

        :raises UnreadablePayload: it cannot be decoded.
        """
        return self._value(func, Payload.RESULT, value)

    def _value(self, func: str, payload: Payload, value: Any) -> Any:
        if not marked(value):
            return value
        return json.loads(self._codec.decode(func, payload, json.dumps(value)))

    def job(self, job: QueuedJob) -> QueuedJob:
        """Decode the result and the failures of a finished job. A failure without its key is not
        changed.

        :raises UnreadablePayload: the result cannot be decoded.
        """
        errors = tuple(self._read_failure(job.func, failure) for failure in job.errors)
        return replace(job, result=self.result(job.func, job.result), errors=errors)

    def _read_failure(self, func: str, stored: Mapping[str, Any]) -> Mapping[str, Any]:
        match stored:
            case {"args": [value]} if marked(value):
                try:
                    found = self._value(func, Payload.FAILURE, value)
                except UnreadablePayload:
                    return stored
                if found == value:  # the argument of an exception, which is not encoded
                    return stored
                rest = {name: item for name, item in stored.items() if name != "args"}
                return {**rest, **found}
            case _:
                return stored
