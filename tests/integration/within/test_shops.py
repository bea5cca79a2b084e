"""The examples of web applications run as they stand: a row and its job are there, or neither."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from chancy import State
from tests.support.command import Started, environment, started
from tests.support.locks import BLOCKED
from tests.support.ports import free_port
from tests.support.sources import ROOT
from tests.support.sql import LASTING, ask, count
from tests.support.waiting import eventually_sync


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """An application of ``examples``: how it is prepared, served, and asked."""

    folder: str
    prepare: tuple[str, ...]
    serve: tuple[str, ...]
    work: tuple[str, ...]
    #: Where the order of a request is, for httpx.
    place: str
    tables: str
    #: The state of a job that has succeeded, as the application calls it.
    done: str

    @property
    def worker(self) -> list[str]:
        return [sys.executable, *self.work, "--processes", "1"]


LONG = pytest.mark.chaos
FASTAPI = Example(
    folder="fastapi_shop",
    prepare=("tables.py",),
    serve=("-m", "uvicorn", "shop:app", "--port", "{port}"),
    work=("-m", "chancy.cli", "worker", "--app", "jobs:chancy"),
    done="succeeded",
    place="params",
    tables="orders",
)
FLASK = Example(
    folder="flask_shop",
    prepare=("tables.py",),
    serve=("-m", "flask", "--app", "shop", "run", "--port", "{port}"),
    work=("-m", "chancy.cli", "worker", "--app", "jobs:chancy"),
    done="succeeded",
    place="data",
    tables="orders",
)
DJANGO = Example(
    folder="django_shop",
    prepare=("manage.py", "migrate"),
    serve=("manage.py", "runserver", "--noreload", "{port}"),
    work=("manage.py", "chancy_worker"),
    done="successful",
    place="data",
    tables="shop_order",
)


@dataclass(frozen=True, slots=True)
class Shop:
    """One of them, served."""

    example: Example
    cwd: Path
    dsn: str
    port: int
    web: Started

    def order(self) -> httpx.Response:
        sent: dict[str, Any] = {self.example.place: {"item": "tea", "quantity": 2}}
        return httpx.post(f"http://127.0.0.1:{self.port}/orders", timeout=30, **sent)

    def show(self, id: int) -> dict[str, Any]:
        answer = httpx.get(f"http://127.0.0.1:{self.port}/orders/{id}", timeout=30)
        found: dict[str, Any] = answer.raise_for_status().json()
        return found

    @property
    def listens(self) -> bool:
        assert self.web.process.poll() is None, self.web.log
        try:
            return httpx.get(f"http://127.0.0.1:{self.port}/orders/0").status_code == 404
        except httpx.TransportError:
            return False

    @property
    def rows(self) -> tuple[int, int]:
        """Orders and unfinished jobs, as another session sees them."""
        both = f"select (select count(*) from {self.example.tables}), count(*) from chancy.jobs"
        ((orders, unfinished),) = ask(self.dsn, both)
        return orders, unfinished


@contextmanager
def served(example: Example, cwd: Path, dsn: str) -> Generator[Shop]:
    env = {"CHANCY_DSN": dsn}
    subprocess.run(
        [sys.executable, *example.prepare],
        cwd=cwd,
        env=environment(env),
        check=True,
        stdout=subprocess.DEVNULL,
        timeout=50,
    )
    port = free_port()
    serve = [part.format(port=port) for part in example.serve]
    with started([sys.executable, *serve], cwd=cwd, env=env) as web:
        shop = Shop(example, cwd, dsn, port, web)
        eventually_sync(lambda: shop.listens, timeout=30)
        yield shop


@pytest.fixture(
    params=[FASTAPI, pytest.param(FLASK, marks=LONG), pytest.param(DJANGO, marks=LONG)],
    ids=lambda example: example.folder,
)
def shop(request: pytest.FixtureRequest, tmp_path: Path, dsn: str) -> Generator[Shop]:
    example: Example = request.param
    cwd = Path(shutil.copytree(ROOT / "examples" / example.folder, tmp_path / example.folder))
    with served(example, cwd, dsn) as made:
        yield made


def test_an_order_is_written_with_its_job_and_shows_its_result_or_leaves_neither(
    shop: Shop,
) -> None:
    with started(shop.example.worker, cwd=shop.cwd, env={"CHANCY_DSN": shop.dsn}) as running:
        answer = shop.order()
        assert answer.status_code == 201, (answer.text, shop.web.log)
        id = answer.json()["id"]
        done = {"item": "tea", "state": shop.example.done, "result": "sent: 2 × tea"}
        eventually_sync(lambda: shop.show(id) == done, timeout=30)
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(30) == 0, running.log
    if shop.example is FASTAPI:
        again = f"http://127.0.0.1:{shop.port}/orders/{id}/confirmations"
        assert httpx.post(again, timeout=30).status_code == 202
        assert shop.rows == (1, 1)
    before = shop.rows
    items = "shop_item" if shop.example is DJANGO else "items"
    ask(shop.dsn, f"alter table {items} add check (stock > 99) not valid")
    assert shop.order().status_code == 500
    assert shop.rows == before


def replace(cwd: Path, old: str, new: str) -> None:
    settings = cwd / "shop" / "settings.py"
    text = settings.read_text()
    assert old in text
    settings.write_text(text.replace(old, new))


@LONG
def test_a_shop_of_django_tests_itself(tmp_path: Path, dsn: str) -> None:
    cwd = Path(shutil.copytree(ROOT / "examples" / DJANGO.folder, tmp_path / DJANGO.folder))
    tested = subprocess.run(
        [sys.executable, "manage.py", "test"],
        cwd=cwd,
        env=environment({"CHANCY_DSN": dsn}),
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert tested.returncode == 0, tested.stderr
    assert "Ran 2 tests" in tested.stderr


def test_a_shop_of_django_runs_in_processes(tmp_path: Path, dsn: str) -> None:
    cwd = Path(shutil.copytree(ROOT / "examples" / DJANGO.folder, tmp_path / DJANGO.folder))
    replace(cwd, '"thread"', '"process", "concurrency": 1')
    subprocess.run(
        [sys.executable, "manage.py", "migrate", "-v0"],
        cwd=cwd,
        env=environment({"CHANCY_DSN": dsn}),
        check=True,
        timeout=50,
    )
    with psycopg.connect(dsn) as connection:
        connection.execute("insert into shop_order (item_id, quantity) values ('tea', 3)")
        connection.execute(
            "select chancy.push('orders', 'shop.tasks.confirm',"
            """ '{"args": [], "kwargs": {"order": 1}}')"""
        )
    worker = [sys.executable, *DJANGO.work, "--processes=0", "--burst"]
    with started(worker, cwd=cwd, env={"CHANCY_DSN": dsn}) as running:
        assert running.process.wait(40) == 0, running.log
    done = ask(dsn, "select state, result from chancy.finished_jobs")
    assert done == [(State.SUCCEEDED, "sent: 3 × tea")], running.log


KEPT = """
DATABASES["default"] |= {"CONN_MAX_AGE": 600, "CONN_HEALTH_CHECKS": True}
"""
#: Django's sessions have no name; the worker's own have, and this one.
END_SESSIONS = """
select count(pg_terminate_backend(pid)) from pg_stat_activity
where datname = current_database() and backend_type = 'client backend'
  and application_name = '' and pid != pg_backend_pid()
"""


@pytest.mark.chaos
@pytest.mark.parametrize(
    "kept",
    [pytest.param(False, id="closed after each job"), pytest.param(True, id="kept")],
)
def test_jobs_of_django_outlast_the_end_of_their_sessions(
    tmp_path: Path, dsn: str, kept: bool
) -> None:
    """As a restart of the database ends them."""
    cwd = Path(shutil.copytree(ROOT / "examples" / DJANGO.folder, tmp_path / DJANGO.folder))
    if kept:
        with (cwd / "shop" / "settings.py").open("a") as settings:
            settings.write(KEPT)
    # One thread, so that both orders are its own.
    replace(cwd, '"thread"', '"thread", "concurrency": 1')
    with served(DJANGO, cwd, dsn) as shop, started(DJANGO.worker, cwd=cwd, env={"CHANCY_DSN": dsn}):
        for ended in (False, True):
            assert shop.order().status_code == 201, shop.web.log
            eventually_sync(lambda: shop.rows[1] == 0)
            if not ended:
                ((ended_all,),) = ask(dsn, END_SESSIONS)
                assert ended_all or not kept
    done = ask(dsn, "select attempt, state from chancy.finished_jobs")
    assert done == [(1, State.SUCCEEDED)] * 2


def waits(dsn: str) -> bool:
    """Whether a session waits for a lock."""
    return bool(ask(dsn, f"select 1 from pg_stat_activity where {BLOCKED}"))


LOCKS = {
    "between the row and the job": "lock table chancy.jobs in share mode",
    "between the job and the commit": "lock table {items} in share mode",
}


@LONG
@pytest.mark.parametrize("lock", LOCKS.values(), ids=LOCKS)
def test_a_web_process_killed_before_its_commit_leaves_neither(shop: Shop, lock: str) -> None:
    items = "shop_item" if shop.example is DJANGO else "items"
    with ThreadPoolExecutor(1) as pool:
        with psycopg.connect(shop.dsn) as blocker:
            blocker.execute(lock.format(items=items).encode())
            asked: Future[httpx.Response] = pool.submit(shop.order)
            eventually_sync(lambda: waits(shop.dsn))
            shop.web.process.kill()
            shop.web.process.wait()
            with pytest.raises(httpx.TransportError):
                asked.result(30)
        # What it had sent is still waiting in the server, which finds nobody to answer.
        eventually_sync(lambda: alone_on(shop.dsn))
    assert shop.rows == (0, 0)


def alone_on(dsn: str) -> bool:
    sessions = (
        "pg_stat_activity where datname = current_database() and backend_type = 'client backend'"
        " and application_name <> %s and pid <> pg_backend_pid()"
    )
    return count(dsn, sessions, [LASTING]) == 0
