"""Checkpoints of a job: stored values of function calls, which later attempts reuse.

They are stored in the job's meta under `KEY`: the value of each name, and the attempt that ran it.
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Protocol

from chancy.context.host import PendingWrite
from chancy.errors import (
    InvalidCheckpoint,
    InvalidResult,
    JobError,
    LeaseLost,
    PayloadTooLarge,
)
from chancy.serialization import codec
from chancy.serialization.signature import Signature
from chancy.text import shown

#: The key of a job's meta that holds its checkpoints.
KEY = "checkpoints"
#: The limits of a job's checkpoints: their number, and the characters of a name.
MAX_CHECKPOINTS = 1_000
MAX_NAME = 200
#: Characters that Postgres cannot store.
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


class CheckpointOwner(Protocol):
    """The attempt that the checkpoints belong to."""

    @property
    def func(self) -> str: ...
    @property
    def attempt(self) -> int: ...
    def check(self) -> None:
        """Raise `Interrupted` if it should stop."""
        ...

    def ask_to_stop(self, why: str) -> None: ...
    def keep(self, meta: str) -> PendingWrite:
        """Merge keys into the job's meta, in the order of the calls."""
        ...


class Checkpoints:
    """The checkpoints of one attempt. Used from any thread.

    :param stored: the value of `KEY` in the job's meta.
    :param limit: the largest size of all checkpoints together, in bytes.
    """

    def __init__(self, attempt: CheckpointOwner, stored: object, *, limit: int) -> None:
        self._attempt = attempt
        self._func = attempt.func
        self._limit = limit
        # Reentrant: a signal handler may raise in a job that holds it, and the job may then run
        # another checkpoint while it cleans up.
        self._lock = threading.RLock()
        self._records: dict[str, str] = {}
        self._started: set[str] = set()
        #: Set when the job is being completed: no more checkpoints are run.
        self.closed = False
        for name, record in stored.items() if isinstance(stored, dict) else ():
            if isinstance(record, dict) and "value" in record:
                self._records[name] = codec.encode(record, what="a checkpoint", limit=1 << 60)

    async def run(
        self,
        name: str,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """See `JobContext.checkpoint`."""
        signature = self._signature(name, function)
        record = self._start(name)
        if record is None:
            with self._running(name):
                value = function(*args, **kwargs)
                if isinstance(value, Awaitable):
                    value = await value
                record, write = self._store(name, value, signature)
            with self._storing():
                await write
        return self._value(name, record, signature)

    def sync_run(
        self,
        name: str,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """See `JobContext.sync_checkpoint`."""
        _check_blocking(name)
        signature = self._signature(name, function)
        record = self._start(name)
        if record is None:
            with self._running(name):
                value = function(*args, **kwargs)
                if isinstance(value, Awaitable):
                    _close(value)
                    raise self._invalid(name, "it is asynchronous: use `await checkpoint(…)`")
                record, write = self._store(name, value, signature)
            with self._storing():
                write.wait(self._attempt.check)
        return self._value(name, record, signature)

    @contextmanager
    def _running(self, name: str) -> Generator[None]:
        try:
            yield
        except BaseException:
            with self._lock:
                self._started.discard(name)
            raise

    @contextmanager
    def _storing(self) -> Generator[None]:
        try:
            yield
        except LeaseLost as error:
            self._attempt.ask_to_stop(str(error))
            raise

    def _signature(self, name: object, function: object) -> Signature:
        """Check a checkpoint's name and function. Returns the function's signature."""
        self._attempt.check()
        if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME or _UNSTORABLE.search(name):
            raise self._invalid(
                name,
                f"its name must be a string of 1 to {MAX_NAME} characters, without NUL and "
                "surrogates",
            )
        if not callable(function):
            _close(function)
            raise self._invalid(
                name, f"{shown(function)} is not a function: pass a function, then its arguments"
            )
        signature = Signature.of(function, _path(function))
        try:
            signature.check_result()
        except InvalidResult as error:
            raise self._invalid(name, str(error)) from None
        return signature

    def _start(self, name: str) -> str | None:
        """Start a checkpoint. Returns its stored record as JSON; None if it must be run."""
        with self._lock:
            if self.closed:
                raise self._invalid(name, "the job was already completed by complete_in()")
            if name in self._started:
                raise self._invalid(
                    name,
                    "this attempt already has a checkpoint of this name: give each one its own "
                    "name, such as f'send {number}'",
                )
            if (
                name not in self._records
                and len(self._records.keys() | self._started) >= MAX_CHECKPOINTS
            ):
                raise self._invalid(
                    name,
                    f"the job has {MAX_CHECKPOINTS:,} checkpoints already: push jobs for the rest",
                )
            self._started.add(name)
            return self._records.get(name)

    def _store(self, name: str, value: object, signature: Signature) -> tuple[str, PendingWrite]:
        """Store the value of a checkpoint. Returns its record as a JSON string, and the write."""
        what = f"the value of checkpoint {name!r} of {self._func}"
        try:
            encoded = signature.encode_result(value, self._limit)
        except InvalidResult as error:
            raise InvalidCheckpoint(f"{what}: {error}") from error.__cause__
        except PayloadTooLarge as error:
            raise PayloadTooLarge(f"{what}: {error}") from None
        text = f'{{"value":{encoded},"attempt":{self._attempt.attempt}}}'
        with self._lock:
            records = {**self._records, name: text}
            checkpoints = ",".join(
                f"{codec.encode(key, what=what)}:{stored}" for key, stored in records.items()
            )
            meta = f'{{"{KEY}":{{{checkpoints}}}}}'
            size = len(meta) if meta.isascii() else len(meta.encode())
            if size > self._limit:
                raise PayloadTooLarge(
                    f"the checkpoints of {self._func} take {size:,} bytes with {name!r}, the limit "
                    f"is {self._limit:,}: store data elsewhere and references in checkpoints"
                )
            self._records = records
            # Under the lock, so that the last write contains all checkpoints.
            return text, self._attempt.keep(meta)

    def _value(self, name: str, record: str, signature: Signature) -> Any:
        try:
            return signature.read_result(codec.decode(record)["value"])
        except InvalidResult as error:
            what = f"the stored value of checkpoint {name!r} of {self._func}"
            raise InvalidCheckpoint(f"{what}: {error}") from error.__cause__

    def _invalid(self, name: object, why: str) -> InvalidCheckpoint:
        return InvalidCheckpoint(f"checkpoint {shown(name)} of {self._func} cannot be run: {why}")


def _path(function: Callable[..., Any]) -> str:
    """The path of a function for errors, without arguments, which its `repr` may contain."""
    while isinstance(function, partial):
        function = function.func
    named = function if hasattr(function, "__qualname__") else type(function)
    module = getattr(named, "__module__", None) or "builtins"  # methods of C have none
    return f"{module}.{named.__qualname__}"


def _close(value: object) -> None:
    """Close a coroutine that will not be awaited; Python would warn about it."""
    close = getattr(value, "close", None)
    if close is not None and hasattr(value, "send"):
        close()


def _check_blocking(name: object) -> None:
    # asyncio is not imported for this check: an executor process without coroutines does not load
    # it.
    asyncio = sys.modules.get("asyncio")
    if asyncio is None:
        return
    with suppress(RuntimeError):
        # A plain function that an executor process runs between coroutines has no current task.
        if asyncio.current_task() is not None:
            raise JobError(
                f"sync_checkpoint({shown(name)}) would block the event loop: use "
                "await checkpoint(…)"
            )
