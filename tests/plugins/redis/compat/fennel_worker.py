"""Workers of `fennel_shop` in separate processes, and the program in this one."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Generator, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from types import ModuleType
from uuid import UUID

import pytest

from chancy import Chancy, QueuedJob, Worker
from tests.support.command import Started, command, started
from tests.support.sources import ROOT

APP = "tests.plugins.redis.compat.fennel_shop"


class Shop:
    """The program with its settings, in this process and in workers."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder = folder
        self.environment = environment

    @property
    def program(self) -> ModuleType:
        return importlib.import_module(APP)

    @contextmanager
    def worker(self, *options: str, processes: int = 0) -> Generator[Started]:
        words = command("worker", "--app", f"{APP}:app", "--processes", processes)
        words += ["--heartbeat", "0.2", "--heartbeat-timeout", "30", *options]
        with started(words, cwd=self.folder, env=self.environment) as process:
            try:
                yield process
            finally:
                sys.stdout.write(process.log)  # shown if a test fails

    @contextmanager
    def serving(self) -> Generator[None]:
        """A worker in this process, in the event loop of the program's calls."""
        app, stack = self.program.app, AsyncExitStack()

        async def start(_: Chancy) -> None:
            # The commands of a test open the application that `app()` returns.
            chancy = await stack.enter_async_context(app._make())
            worker = Worker(
                chancy, queues=[app.name], heartbeat_s=0.2, heartbeat_timeout_s=30.0,
                shutdown_timeout_s=0.5,
            )  # fmt: skip
            await stack.enter_async_context(worker)

        async def stop(_: Chancy) -> None:
            await stack.aclose()

        app.run(start)
        try:
            yield
        finally:
            app.run(stop)

    def counts(self) -> dict[str, int]:
        """Unfinished jobs by queue."""

        async def look(chancy: Chancy) -> dict[str, int]:
            return {queue: sum(numbers) for queue, numbers in (await chancy.counts()).items()}

        found: dict[str, int] = self.program.app.run(look)
        return found

    def job(self, id: str) -> QueuedJob:
        """A job as it is now."""

        async def look(chancy: Chancy) -> QueuedJob | None:
            return await chancy.get_job(UUID(id))

        found: QueuedJob | None = self.program.app.run(look)
        assert found is not None
        return found

    def notes(self, name: str) -> list[tuple[str, int]]:
        """The notes of tasks in the file: a word, and the process."""
        path = self.folder / name
        if not path.exists():
            return []
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        return [(text, pid) for text, pid in lines]


def with_settings(**settings: str) -> pytest.MarkDecorator:
    """The program, for the fixture."""
    return pytest.mark.parametrize("shop", [settings], indirect=True, ids=["set"])


def opened(
    monkeypatch: pytest.MonkeyPatch, folder: Path, dsn: str, redis_url: str, **settings: str
) -> Iterator[Shop]:
    """The program with settings of the environment; its connections are closed at the end."""
    environment = {"CHANCY_DSN": dsn, "FENNEL_REDIS_URL": redis_url, "PYTHONPATH": str(ROOT)}
    # On a busy machine the start of a worker also takes seconds.
    settings = {"task_timeout": "30"} | settings
    environment |= {f"FENNEL_{name.upper()}": value for name, value in settings.items()}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    sys.modules.pop(APP, None)
    shop = Shop(folder, environment)
    try:
        yield shop
    finally:
        shop.program.app.close()
        sys.modules.pop(APP, None)
