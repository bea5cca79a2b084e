"""Imports of the modules of jobs in the worker: in a thread, and with a limit of their own."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections.abc import Callable

from chancy.errors import ImportTimeout
from chancy.executors.base import FindFunction
from chancy.job.definition import DECORATED

#: Seconds that the import of a job's module may take. The time limit of the job starts afterwards.
IMPORT_S = 60.0


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
    loop = asyncio.get_running_loop()
    found: asyncio.Future[None] = loop.create_future()

    def settle(error: BaseException | None) -> None:
        if found.done():
            return
        if error is None:
            found.set_result(None)
        else:
            found.set_exception(error)

    threading.Thread(
        target=_look_up, args=(path, find, loop, settle), name="chancy import", daemon=True
    ).start()
    try:
        async with asyncio.timeout(IMPORT_S):
            await found
    except TimeoutError:
        if found.done() and not found.cancelled():
            raise  # of the module itself
        raise import_timeout(path) from None


def _look_up(
    path: str,
    find: FindFunction,
    loop: asyncio.AbstractEventLoop,
    settle: Callable[[BaseException | None], None],
) -> None:
    error: BaseException | None = None
    try:
        find(path)
    except BaseException as raised:
        error = raised
    with contextlib.suppress(RuntimeError):  # the loop has been closed
        loop.call_soon_threadsafe(settle, error)
