"""Imports of the modules of jobs in the worker: in a thread, and with a limit of their own."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading

from chancy.attempt.outcome import Raised, Snoozed
from chancy.clock import is_being_cancelled
from chancy.errors import ImportTimeout
from chancy.executors.base import FindFunction
from chancy.executors.invocation import raised
from chancy.job.definition import DECORATED
from chancy.log_context import keeping_loggers

#: Seconds that the import of a job's module may take. The time limit of the job starts afterwards.
IMPORT_S = 60.0
#: Modules to import at a time. Each has a thread, also while its import hangs; further ones wait.
MOST = 16
#: Seconds between two checks whether one of these imports has ended.
_PAUSE_S = 0.05

_Key = tuple[asyncio.AbstractEventLoop, FindFunction, str]
#: Result: the function that was looked up, and the error.
_LookUp = asyncio.Future[tuple[str, BaseException | None]]
#: Look-ups in progress, by module: all jobs of a module wait for the same thread.
_look_ups: dict[_Key, _LookUp] = {}


def import_timeout(path: str) -> ImportTimeout:
    module = path.rpartition(".")[0]
    return ImportTimeout(
        f"the module {module} took longer than {IMPORT_S:g} s to import, and the job has not "
        "started: import it in the worker's application, or make its import faster"
    )


def needs_import(path: str) -> bool:
    """Whether the module of a function is not imported yet, or not to its end."""
    if path in DECORATED:
        return False
    module = sys.modules.get(path.rpartition(".")[0])
    spec = getattr(module, "__spec__", None)
    return module is None or bool(getattr(spec, "_initializing", False))


async def load(path: str, find: FindFunction) -> None:
    """Look a function up; if that imports its module, the event loop continues.

    :raises ImportTimeout: the import takes too long. It continues in its thread.
    :raises UnknownFunction: see `Registry.find`.
    """
    if not needs_import(path):
        find(path)
        return
    try:
        async with asyncio.timeout(IMPORT_S):
            looked_up, error = None, None
            while looked_up != path:
                look_up = _look_up(path, find)
                if look_up is None:
                    await asyncio.sleep(_PAUSE_S)
                else:
                    looked_up, error = await asyncio.shield(look_up)
    except TimeoutError:
        raise import_timeout(path) from None
    if error is not None:
        raise error


def refused(error: BaseException, began: float) -> Raised | Snoozed:
    """The outcome of a call that could not start; raises if this task itself is being cancelled."""
    if isinstance(error, asyncio.CancelledError) and is_being_cancelled():
        raise error
    return raised(error, began)


def _look_up(path: str, find: FindFunction) -> _LookUp | None:
    """Look a function up in a thread. Returns the look-up of another function of its module if that
    has not ended, and None if too many modules are being imported."""
    loop = asyncio.get_running_loop()
    key = loop, find, path.rpartition(".")[0]
    look_up = _look_ups.get(key)
    if look_up is None and len(_look_ups) < MOST:
        look_up = _look_ups[key] = loop.create_future()
        threading.Thread(
            target=_serve, args=(key, path, look_up), name="chancy import", daemon=True
        ).start()
    return look_up


def _serve(key: _Key, path: str, look_up: _LookUp) -> None:
    loop, find, _ = key
    error: BaseException | None = None
    try:
        with keeping_loggers():
            find(path)
    except BaseException as raised:
        error = raised
    del _look_ups[key]
    with contextlib.suppress(RuntimeError):  # the loop has been closed
        loop.call_soon_threadsafe(look_up.set_result, (path, error))
