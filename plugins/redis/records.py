"""The binary record of a job in Redis, with the same layout as in ``jobs/lua/_record.lua``."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from chancy.attempt.claim import Claim
from chancy.attempt.failure import Failure
from chancy.attempt.judge import RATE_LIMITED
from chancy.attempt.settlement import SET_ASIDE, Settlement
from chancy.broker.values import PreparedJob, QueuePosition
from chancy.errors import InvalidArguments, StatementFailed
from chancy.job.definition import QueuedJob
from chancy.job.limits import limits_from
from chancy.serialization.codec import decode, encode
from chancy.states import State

#: FRONT, NUMBERS and LENGTHS of a record.
_HEAD = struct.Struct(">BBBIIdd16s16s" + "bIdddd" + "HHIIHIII")
#: The version of the layout, in the first byte. A worker sets aside records of other versions; a
#: later release that changes the layout raises it and still reads the earlier ones.
VERSION = 1
_LENGTHS = struct.Struct(">HHIIHIII")
_PUSH = struct.Struct(">16sBdbIBBddIId")
_SETTLE = struct.Struct(">16s16sBBBdIII")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST = datetime(1, 1, 1, tzinfo=UTC)
_LAST = datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
_CONFLICTS = {"skip": 1, "replace": 2, "raise": 3}
_HUGE = 1 << 60
_DAMAGED = "its strings are longer or shorter than their lengths"
#: The type in a failure of a job whose record cannot be decoded.
UNREADABLE = "chancy.Unreadable"

_SUCCEEDED = State.SUCCEEDED
_FLOATS = json.JSONDecoder(parse_constant=lambda name: _refuse(name))


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def check_json(text: str, what: str) -> Any:
    """The value of a JSON string that both Redis and Postgres can store.

    :raises ValueError, InvalidArguments: it is not JSON, or has NUL, lone surrogates or NaN.
    """
    value, end = _scan(text, what)
    if end != len(text):
        value = json.loads(text, parse_constant=_refuse)
    if "\\u" in text or not text.isascii():
        encode(value, what=what, limit=_HUGE)
    return value


def _scan(text: str, what: str) -> tuple[Any, int]:
    try:
        return _FLOATS.raw_decode(text)
    except RecursionError:
        raise ValueError(f"{what} is nested too deeply") from None


def check_object(text: str, what: str) -> str:
    """A JSON object as a string on one line."""
    value = check_json(text, what)
    if not isinstance(value, dict):
        raise ValueError(f"{what} is not an object: {text[:80]}")
    return encode(value, what=what, limit=_HUGE) if "\n" in text else text


class Past(NamedTuple):
    """The attempts that a job had in another store before it was moved to Redis.

    :param errors: its failures, oldest first, each with ``attempt``, ``worker_id`` and ``at``.
    :param pushed_at: seconds since 1970; 0 means now.
    """

    attempt: int = 0
    crashes: int = 0
    errors: Sequence[Mapping[str, Any]] = ()
    pushed_at: float = 0.0


_NEW = Past()


def pushed(job: PreparedJob, past: Past = _NEW) -> tuple[bytes, bytes]:
    """The two arguments of the script ``push`` for a job: ORDER and REST.

    :raises StatementFailed: the job has a string that cannot be stored.
    """
    try:
        check_json(job.arguments, "arguments")
        meta = b"" if job.meta is None else check_object(job.meta, "meta").encode()
        func, arguments = job.func.encode(), job.arguments.encode()
        errors = "\n".join(map(_line, past.errors)).encode()
    except (ValueError, InvalidArguments) as error:
        raise StatementFailed(f"job {job.func!a}: {error}") from None
    queue = job.queue.encode()
    limits = b"" if job.limits is None else job.limits.encode()
    kind, at = 0, 0.0
    if job.delay_s is not None:
        kind, at = 2, job.delay_s
    elif job.run_at is not None:
        kind, at = 1, seconds_of(job.run_at)
    rule = job.unique
    key, conflict, flags, period, cap = b"", 0, 0, -1.0, -1.0
    if rule is not None:
        key, conflict, flags = rule.key, _CONFLICTS[rule.on_conflict], int(rule.until_claim)
        period = -1.0 if rule.period_s is None else rule.period_s
        cap = -1.0 if rule.cap_s is None else rule.cap_s
    order = _PUSH.pack(
        job.id.bytes, kind, at, job.priority, job.max_attempts, conflict, flags, period, cap,
        past.attempt, past.crashes, past.pushed_at,
    )  # fmt: skip
    lengths = _LENGTHS.pack(
        len(queue), len(func), len(arguments), len(limits), len(key), len(meta), len(errors), 0
    )
    return order, b"".join((lengths, queue, func, arguments, limits, key, meta, errors))


def settled(settlement: Settlement) -> bytes:
    """The argument of the script ``settle`` for a settlement.

    A settlement that cannot be stored becomes a failure with the reason.
    """
    if settlement.state is _SUCCEEDED and settlement.failure is None and settlement.meta is None:
        # The fast path: nearly all settlements are like this.
        result = b""
        if settlement.result is not None:
            try:
                check_json(settlement.result, "the result")
                result = settlement.result.encode()
            except (ValueError, InvalidArguments) as error:
                return _settled(_failed(settlement, error))
        flags = settlement.refund + 2 * settlement.crashed
        return (
            _SETTLE.pack(
                settlement.id.bytes, settlement.lease.bytes, 4, flags, 0, 0.0, 0, len(result), 0
            )
            + result
        )
    try:
        return _settled(settlement)
    except (ValueError, OverflowError, InvalidArguments) as error:
        return _settled(_failed(settlement, error))


def _settled(settlement: Settlement) -> bytes:
    failure = result = meta = b""
    if settlement.failure is not None:
        failure = encode(settlement.failure.as_json(), what="the failure", limit=_HUGE).encode()
    if settlement.result is not None:
        check_json(settlement.result, "the result")
        result = settlement.result.encode()
    if settlement.meta is not None:
        meta = check_object(settlement.meta, "meta").encode()
    kind, at = 2, settlement.delay_s or 0.0
    if settlement.state is State.HELD and SET_ASIDE in json.loads(meta or b"{}"):
        kind = 3
    elif settlement.run_at is not None:
        kind, at = 1, seconds_of(settlement.run_at)
    else:
        _ = datetime.now(UTC) + timedelta(seconds=at)  # raises after the year 9999
    head = _SETTLE.pack(
        settlement.id.bytes,
        settlement.lease.bytes,
        settlement.state,
        settlement.refund
        + 2 * settlement.crashed
        + 4 * settlement.resets_crashes
        + 8 * (RATE_LIMITED in json.loads(meta or b"{}")),
        kind,
        at,
        len(failure),
        len(result),
        len(meta),
    )
    return b"".join((head, failure, result, meta))


def _failed(settlement: Settlement, error: Exception) -> Settlement:
    """The failure that replaces a settlement that cannot be stored."""
    why = f"the settlement as {settlement.state.label} could not be stored: {error}"
    failure = Failure.named("chancy.errors.StatementFailed", why)
    return Settlement(settlement.id, settlement.lease, State.FAILED, failure=failure)


def claim(id: bytes, record: bytes, taken: tuple[UUID, UUID] | None = None) -> Claim:
    """The claim of a running job.

    :param taken: lease and worker of the claim, if the record is from before the claim.
    :raises ValueError, InvalidArguments: a string of the record cannot be decoded.
    """
    (
        _, _, _, attempt, crashes, _, _, worker, lease, priority, most, position, run_at, pushed_at,
        _, n_queue, n_func, n_arguments, n_limits, n_key, n_meta, n_errors, n_result,
    ) = _HEAD.unpack_from(record)  # fmt: skip
    at = _HEAD.size
    if len(record) - at != (
        n_queue + n_func + n_arguments + n_limits + n_key + n_meta + n_errors + n_result
    ):
        raise ValueError(_DAMAGED)
    queue = record[at : (at := at + n_queue)].decode()
    func = record[at : (at := at + n_func)].decode()
    arguments = record[at : (at := at + n_arguments)].decode()
    limits = record[at : (at := at + n_limits)].decode() if n_limits else None
    at += n_key
    meta = merged(record[at : at + n_meta].decode()) if n_meta else None
    return Claim(
        UUID(bytes=id), *(taken or (UUID(bytes=lease), UUID(bytes=worker))), queue, func, arguments,
        attempt + bool(taken), most, crashes, priority, int(position), meta, limits,
        # By the clock of this process. A job without a time to run at has NaN.
        max(time.time() - (pushed_at if run_at != run_at else run_at), 0.0) if taken else None,
    )  # fmt: skip


def is_running(record: bytes, worker_id: UUID) -> bool:
    """Whether a worker runs the job of a record, which is empty for a missing job."""
    if not record:
        return False
    head = _HEAD.unpack_from(record)
    return bool(head[1] == State.RUNNING and head[7] == worker_id.bytes)


def lease_of(record: bytes) -> UUID:
    """The lease of a record."""
    return UUID(bytes=_HEAD.unpack_from(record)[8])


def meta_of(record: bytes) -> bytes:
    """The meta of a record, one JSON object per line."""
    head = _HEAD.unpack_from(record)
    lengths = head[15:]
    at = _HEAD.size + sum(lengths[:5])
    return record[at : at + lengths[5]]


def parts(record: bytes) -> tuple[tuple[Any, ...], list[bytes]]:
    """The numbers of a record, in the order of ``lua/_record.lua``, and its strings.

    :raises ValueError: the strings are longer or shorter than their lengths.
    """
    numbers = _HEAD.unpack_from(record)
    texts: list[bytes] = []
    at = _HEAD.size
    for length in numbers[15:]:
        texts.append(record[at : at + length])
        at += length
    if at != len(record):
        raise ValueError(_DAMAGED)
    return numbers[1:15], texts


def failures(lines: str) -> tuple[Mapping[str, Any], ...]:
    """The failures of a record, oldest first. One that cannot be decoded becomes its message."""
    return tuple(map(_error, lines.split("\n"))) if lines else ()


def queued(id: bytes, record: bytes) -> QueuedJob:
    """The job of a record.

    Arguments, limits and meta that cannot be decoded are None or left out, so that a job that
    failed because of them can be inspected.

    :raises ValueError: the result cannot be decoded.
    """
    numbers, texts = parts(record)
    (
        state, _, attempt, crashes, claimed, stop, worker, _, priority, most, _, due, since,
        finished,
    ) = numbers  # fmt: skip
    texts[4] = b""
    queue, func, arguments, limits, _, meta, errors, result = map(text_of, texts)
    running = state == State.RUNNING or state >= State.SUCCEEDED
    return QueuedJob(
        id=UUID(bytes=id),
        func=func,
        arguments=_object(arguments),
        queue=queue,
        priority=priority,
        state=State(state),
        attempt=attempt,
        max_attempts=most,
        crashes=crashes,
        run_at=None if due != due else datetime_of(due),
        worker_id=UUID(bytes=worker) if running and any(worker) else None,
        meta=_merged(meta) or {},
        errors=failures(errors),
        result=decode(result) if result else None,
        pushed_at=datetime_of(since),
        claimed_at=datetime_of(claimed) if claimed else None,
        finished_at=datetime_of(finished) if finished else None,
        stop_asked_at=datetime_of(stop) if stop else None,
        limits=limits_from(_object(limits) or {}),
    )


def position(record: bytes, now: float, ahead: int, running: int) -> QueuePosition:
    """The queue position of the job of a record.

    :param now: the time of the server.
    """
    head = _HEAD.unpack_from(record)
    claimed, due, since = head[5], head[12], head[13]
    timed = due == due
    return QueuePosition(
        ahead=ahead,
        running=running,
        due_s=due - now if timed else 0.0,
        claimed_s=now - claimed if claimed else 0.0,
        waited_s=max(0.0, now - (max(since, min(due, now)) if timed else since)),
    )


def _line(error: Mapping[str, Any]) -> str:
    about = dict(error)
    attempt, worker, at = (about.pop(name, None) for name in ("attempt", "worker_id", "at"))
    worker_id = UUID(str(worker)) if worker else UUID(int=0)
    failed_at = seconds_of(datetime.fromisoformat(str(at))) if at else 0.0
    failure = encode(about, what="a failure", limit=_HUGE)
    return f"{int(attempt or 0)} {worker_id} {failed_at!r}\t{failure}"


def _error(line: str) -> Mapping[str, Any]:
    about, _, failure = line.partition("\t")
    try:
        attempt, worker, at = about.split(" ")
        found: dict[str, Any] = json.loads(failure)
        failed_at = datetime_of(float(at)).isoformat()
        return found | {"attempt": int(attempt), "worker_id": worker, "at": failed_at}
    except (ValueError, TypeError, RecursionError):
        return {**Failure.named(UNREADABLE, line).as_json(), "attempt": 0}


def merged(lines: str) -> str:
    """The JSON objects of several lines merged into one; keys of later lines win.

    :raises ValueError: a line is not a JSON object.
    """
    return (
        lines
        if "\n" not in lines
        else encode(_merged(lines, strict=True), what="meta", limit=_HUGE)
    )


def _merged(lines: str, *, strict: bool = False) -> dict[str, Any]:
    whole: dict[str, Any] = {}
    for line in lines.split("\n"):
        found = _object(line)
        if found is None and strict:
            raise ValueError(f"a line of meta is not an object: {line[:80]!a}")
        whole |= found or {}
    return whole


def _object(text: str) -> dict[str, Any] | None:
    """A JSON object; None if the string is not one."""
    try:
        found = decode(text)
    except InvalidArguments:
        return None
    return found if isinstance(found, dict) else None


def text_of(raw: bytes) -> str:
    """A string of a record, in which invalid UTF-8 is replaced by backslash escapes."""
    return raw.decode(errors="backslashreplace")


def seconds_of(at: datetime) -> float:
    return (at - _EPOCH).total_seconds()


def datetime_of(seconds: float) -> datetime:
    """The datetime of a server time in seconds, clamped to the years 1 to 9999."""
    try:
        return _EPOCH + timedelta(seconds=seconds)
    except OverflowError:
        return _LAST if seconds > 0 else _FIRST
