"""Steps of a job: what they gave, kept so that another attempt need not run them again.

They stand in the job's meta under `KEY`: for each name the value, and the attempt that ran it.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Protocol

from chancy.context.host import PendingWrite
from chancy.errors import InvalidStep, JobError, LeaseLost, PayloadTooLarge
from chancy.serialization import codec
from chancy.text import shown

#: The key of a job's meta that holds its steps.
KEY = "steps"
#: Steps that a job may have, and characters of the name of one.
MAX_STEPS = 1_000
MAX_NAME = 200


class StepOwner(Protocol):
    """The attempt whose steps they are."""

    @property
    def func(self) -> str: ...
    @property
    def attempt(self) -> int: ...
    def check(self) -> None:
        """Raise `Interrupted` if it is to end."""
        ...

    def ask_to_stop(self, why: str) -> None: ...
    def keep(self, meta: str) -> PendingWrite:
        """Have keys put over the job's meta, in the order of the calls."""
        ...


class Steps:
    """The steps of one attempt. Used from any thread.

    :param stored: what the job's meta has under `KEY`.
    :param limit: bytes that all that is kept may take.
    """

    def __init__(self, attempt: StepOwner, stored: object, *, limit: int) -> None:
        self._attempt = attempt
        self._func = attempt.func
        self._limit = limit
        # Reentrant: a signal handler may raise in a job that holds it, and the job go on to
        # another step while it cleans up.
        self._lock = threading.RLock()
        self._kept: dict[str, str] = {}
        self._begun: set[str] = set()
        #: Set when the job is being completed: no step is run any more.
        self.closed = False
        for name, record in stored.items() if isinstance(stored, dict) else ():
            if isinstance(record, dict) and "value" in record:
                self._kept[name] = codec.encode(record, what="a step", limit=1 << 60)

    async def run(
        self,
        name: str,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """See `JobContext.step`."""
        record = self._begin(name, function)
        if record is None:
            with self._running(name):
                value = function(*args, **kwargs)
                if isinstance(value, Awaitable):
                    value = await value
                record, receipt = self._end(name, value)
            with self._storing():
                await receipt
        return _value_of(record)

    def sync_run(
        self,
        name: str,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """See `JobContext.sync_step`."""
        _check_blocking(name)
        record = self._begin(name, function)
        if record is None:
            with self._running(name):
                value = function(*args, **kwargs)
                if isinstance(value, Awaitable):
                    _close(value)
                    raise self._invalid(name, "it is asynchronous: use `await step(…)`")
                record, receipt = self._end(name, value)
            with self._storing():
                receipt.wait(self._attempt.check)
        return _value_of(record)

    @contextmanager
    def _running(self, name: str) -> Generator[None]:
        try:
            yield
        except BaseException:
            with self._lock:
                self._begun.discard(name)
            raise

    @contextmanager
    def _storing(self) -> Generator[None]:
        try:
            yield
        except LeaseLost as error:
            self._attempt.ask_to_stop(str(error))
            raise

    def _begin(self, name: object, function: object) -> str | None:
        """Begin a step. Gives what is kept of it as JSON text, or None: it is to be run."""
        self._attempt.check()
        if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME:
            raise self._invalid(name, f"its name is not text of 1 to {MAX_NAME} characters")
        if not callable(function):
            _close(function)
            raise self._invalid(
                name, f"{shown(function)} is not a function: pass that, and its arguments after it"
            )
        with self._lock:
            if self.closed:
                raise self._invalid(name, "the job is completed in a transaction of its own")
            if name in self._begun:
                raise self._invalid(
                    name,
                    "there was one of this name in this attempt: names tell steps apart, so give "
                    "each its own, such as f'send {number}'",
                )
            if name not in self._kept and len(self._kept.keys() | self._begun) >= MAX_STEPS:
                raise self._invalid(
                    name, f"the job has {MAX_STEPS:,} steps already: push jobs for the rest"
                )
            self._begun.add(name)
            return self._kept.get(name)

    def _end(self, name: str, value: object) -> tuple[str, PendingWrite]:
        """Keep what a step gave. Returns the record as JSON text, and what tells when it is
        stored."""
        what = f"the value of step {name!r} of {self._func}"
        record = {"value": value, "attempt": self._attempt.attempt}
        text = codec.encode(record, what=what, limit=self._limit)
        with self._lock:
            kept = {**self._kept, name: text}
            steps = ",".join(f"{codec.encode(key, what=what)}:{one}" for key, one in kept.items())
            meta = f'{{"{KEY}":{{{steps}}}}}'
            size = len(meta) if meta.isascii() else len(meta.encode())
            if size > self._limit:
                raise PayloadTooLarge(
                    f"the steps of {self._func} take {size:,} bytes with {name!r}, the limit is "
                    f"{self._limit:,}: keep data elsewhere and references in steps"
                )
            self._kept = kept
            # In here, so that what is stored last has all of them.
            return text, self._attempt.keep(meta)

    def _invalid(self, name: object, why: str) -> InvalidStep:
        return InvalidStep(f"step {shown(name)} of {self._func} cannot be run: {why}")


def _value_of(record: str) -> Any:
    return codec.decode(record)["value"]


def _close(value: object) -> None:
    """End a coroutine that nobody will await, or Python complains of it."""
    close = getattr(value, "close", None)
    if close is not None and hasattr(value, "send"):
        close()


def _check_blocking(name: object) -> None:
    # Not imported for this: a child without coroutines does without asyncio.
    asyncio = sys.modules.get("asyncio")
    if asyncio is None:
        return
    with suppress(RuntimeError):
        # A plain function that a child runs between its coroutines is in no task.
        if asyncio.current_task() is not None:
            raise JobError(f"sync_step({shown(name)}) would hold up the loop: use await step(…)")
