"""Fixtures: worker processes, an application without a worker, and the book that jobs write."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import pytest

from chancy import Chancy
from tests.faults.book import Book
from tests.faults.worker_process import WorkerProcess, WorkerSettings
from tests.support.postgres_fixtures import _database, find_run

pytest.register_assert_rewrite("chancy.testing.conformance", "tests.faults.scenario")


class StartWorker(Protocol):
    """The signature of the fixture `start_worker`: takes the settings of `WorkerSettings`."""

    def __call__(self, dsn: str, **settings: Any) -> WorkerProcess: ...


@pytest.fixture(scope="session")
def template(shipped_template: str) -> str:
    """The queue ``default`` is as users have it: executor processes die, too."""
    return shipped_template


@pytest.fixture
def book(tmp_path: Path) -> Book:
    return Book(tmp_path / "book")


@pytest.fixture
def start_worker(tmp_path: Path) -> Iterator[StartWorker]:
    """Starts a worker process: ``start_worker(dsn, executor="process")``. Killed at the end."""
    started: list[WorkerProcess] = []
    numbers = itertools.count(1)

    def start(dsn: str, **settings: Any) -> WorkerProcess:
        name = f"{secrets.token_hex(4)}-{next(numbers)}"
        named = f"{dsn}{'&' if '?' in dsn else '?'}application_name={name}"
        log = tmp_path / f"worker-{name}.log"
        worker = WorkerProcess(name, WorkerSettings(dsn=named, **settings), log)
        started.append(worker)
        return worker

    yield start
    for worker in started:
        worker.close()


@pytest.fixture
async def chancy(dsn: str) -> AsyncIterator[Chancy]:
    """An application on the test's database, for pushing."""
    async with Chancy(dsn) as opened:
        yield opened


@pytest.fixture
def dsns(request: pytest.FixtureRequest, template: str) -> Iterator[list[str]]:
    """Four migrated databases, to run scenarios in parallel that mostly wait."""
    run = find_run(request.config)
    with ExitStack() as made:
        yield [made.enter_context(_database(run, request, template)) for _ in range(4)]
