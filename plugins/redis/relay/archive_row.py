"""A finished job of Redis as a row of the history, in JSON."""

from __future__ import annotations

import json
from uuid import UUID

from chancy.plugins.redis import records
from chancy.states import State


def row(id: bytes, record: bytes) -> str | None:
    """The row of a record as a JSON object; None if its job was pushed again and is not finished.

    What is JSON in the record stays as it is, to the digit.
    """
    numbers, texts = records.parts(record)
    (
        state, _, attempt, crashes, claimed, stop, worker, lease, priority, most, position, due,
        since, finished,
    ) = numbers  # fmt: skip
    if not State(state).final:
        return None
    queue, func, arguments, limits, key, meta, errors, result = texts
    plain = {
        "id": str(UUID(bytes=id)),
        "pos": int(position),
        "state": state,
        "queue": queue.decode(),
        "priority": priority,
        "func": func.decode(),
        "run_at": None if due != due else _time(due),
        "attempt": attempt,
        "max_attempts": most,
        "crashes": crashes,
        "lease": _id(lease),
        "worker_id": _id(worker),
        "claimed_at": _time(claimed),
        "stop_asked_at": _time(stop),
        "unique_key": f"\\x{key.hex()}" if key else None,
        "pushed_at": _time(since),
        "finished_at": _time(finished),
        "errors": list(records.failures(errors.decode())) or None,
    }
    exact = {
        "arguments": arguments.decode(),
        "limits": limits.decode(),
        "meta": records.merged(meta.decode()),
        "result": result.decode(),
    }
    written = ",".join(f'"{name}":{text}' for name, text in exact.items() if text)
    return f"{json.dumps(plain)[:-1]},{written}}}"


def _time(seconds: float) -> str | None:
    return records.moment(seconds).isoformat() if seconds else None


def _id(raw: bytes) -> str | None:
    return str(UUID(bytes=raw)) if any(raw) else None
