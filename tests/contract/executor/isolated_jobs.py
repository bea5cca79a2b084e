"""Jobs that run one after the other in an executor process for quarantined jobs."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace, TracebackType
from typing import Any

from chancy.context.context import current_job

_tasks: list[asyncio.Task[None]] = []
_go = asyncio.Event()


class Application:
    import_path: str | None = f"{__name__}:application"
    hooks: Any = SimpleNamespace(around=())

    async def __aenter__(self) -> Application:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass


application = Application()


async def leave_a_checkpoint() -> None:
    """Ends before its checkpoint."""
    job = current_job()

    async def run_late() -> None:
        await _go.wait()
        job.progress(0.5)
        await job.checkpoint("customer", lambda: "of another job")

    _tasks.append(asyncio.create_task(run_late()))


async def let_it_run() -> str:
    """Returns how the checkpoint of the earlier job ended."""
    _go.set()
    [error] = await asyncio.gather(*_tasks, return_exceptions=True)
    return type(error).__name__
