"""Jobs on clusters of Dask and Ray whose processes are killed while they run."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import psutil
import pytest

from chancy import Chancy, State
from chancy.queue.executor_options import DaskOptions, encode_options
from chancy.results.reference import Reference
from tests.faults import jobs, oracles
from tests.faults.book import Book
from tests.faults.conftest import StartWorker
from tests.support.clusters import KINDS, ROOT, TOGETHER, ClusterProcesses
from tests.support.presence import present
from tests.support.waiting import eventually

pytestmark = [pytest.mark.chaos, TOGETHER]

#: More than a cluster takes to start on a busy machine.
DEADLINE_S = 120.0


@pytest.fixture(params=KINDS)
def cluster(request: pytest.FixtureRequest) -> Iterator[ClusterProcesses]:
    made = KINDS[request.param]()
    yield made
    made.close()


def serving(cluster: ClusterProcesses, **settings: Any) -> dict[str, Any]:
    """Settings of a worker process; a job is stopped before it can be rescued."""
    options = encode_options(cluster.options(**{"contact_timeout_s": 1.5, **settings}))
    return {"executor": cluster.name, "options": options, "heartbeat_timeout_s": 4.0}


async def first_run(book: Book, number: int = 1) -> psutil.Process:
    """The process of a job that holds, once it runs."""
    await eventually(lambda: book.count("begin")[number] == 1, timeout=DEADLINE_S)
    return psutil.Process(next(one.pid for one in book.entries() if one.number == number))


async def succeeded(reference: Reference, crashes: int) -> None:
    done = await reference.wait(DEADLINE_S)
    assert (done.state, done.crashes) == (State.SUCCEEDED, crashes)


@pytest.fixture
async def reference(chancy: Chancy, dsn: str, book: Book) -> Reference:
    return await chancy.push(jobs.hold.job(str(book), 1))


async def test_a_killed_process_of_the_cluster_costs_its_job_a_crash_and_no_other_anything(
    chancy: Chancy,
    cluster: ClusterProcesses,
    dsn: str,
    book: Book,
    reference: Reference,
    start_worker: StartWorker,
) -> None:
    others = await chancy.push_many(
        jobs.work.job(str(book), number, 0.2) for number in range(2, 12)
    )
    start_worker(dsn, **serving(cluster))
    running = await first_run(book)
    parent = present(running.parent())
    parent.kill()
    await succeeded(reference, crashes=1)
    for other in others:
        await succeeded(other, crashes=0)
    assert book.count("begin")[1] == 2
    assert oracles.find_overlaps(book) == []


async def test_jobs_of_a_killed_worker_end_in_the_cluster_before_they_run_again(
    cluster: ClusterProcesses, dsn: str, book: Book, reference: Reference, start_worker: StartWorker
) -> None:
    worker = start_worker(dsn, **serving(cluster))
    await first_run(book)
    worker.kill()
    start_worker(dsn, **serving(cluster))
    await succeeded(reference, crashes=1)
    assert oracles.find_overlaps(book) == []


async def test_a_killed_head_costs_no_attempt(
    cluster: ClusterProcesses, dsn: str, book: Book, reference: Reference, start_worker: StartWorker
) -> None:
    worker = start_worker(dsn, **serving(cluster))
    await first_run(book)
    cluster.kill_head()
    await eventually(lambda: "queue_broken" in worker.log.read_text(), timeout=DEADLINE_S)
    cluster.close()
    cluster.start()
    await succeeded(reference, crashes=0)
    assert oracles.find_overlaps(book) == []
    assert "queue_recovered" in worker.log.read_text()


async def test_a_queue_that_needs_what_no_machine_has_is_broken(
    cluster: ClusterProcesses, dsn: str, start_worker: StartWorker
) -> None:
    worker = start_worker(dsn, **serving(cluster, contact_timeout_s=8.0, resources={"license": 1}))
    lacks = re.compile(r"queue_broken queue=load why=no \w+ of the \w+ cluster has .*'license': 1")
    await eventually(lambda: lacks.search(worker.said()), timeout=DEADLINE_S)


#: Connects to a head that does not answer, gives up, and prints the time.
_UNANSWERED = """\
import asyncio, contextlib, socket, time
from chancy.executors.cluster.on_ray import RayCluster
from chancy.queue.executor_options import RayOptions

async def main(port):
    cluster = RayCluster(RayOptions(address=f"ray://127.0.0.1:{port}"))
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(1):
            await cluster.connect(print)
    await cluster.close()

with socket.create_server(("127.0.0.1", 0)) as server:
    asyncio.run(main(server.getsockname()[1]))
    print(time.monotonic())
"""


def test_a_process_exits_although_a_head_of_ray_does_not_answer() -> None:
    pytest.importorskip(
        "ray", reason="ray is not installed: the command `make clusters` installs it"
    )
    done = subprocess.run(
        [sys.executable, "-c", _UNANSWERED], cwd=ROOT, stdout=subprocess.PIPE, check=True
    )
    assert time.monotonic() - float(done.stdout.split()[-1]) < 5.0


async def test_a_cluster_that_adapts_has_machines_while_there_are_jobs(
    chancy: Chancy, dsn: str, book: Book, start_worker: StartWorker
) -> None:
    distributed = pytest.importorskip(
        "distributed",
        reason="distributed is not installed: the command `make clusters` installs it",
    )
    make = partial(
        distributed.LocalCluster,
        n_workers=0,
        threads_per_worker=1,
        host="127.0.0.1",
        dashboard_address=":0",  # None would be port 8787, which another test may have
    )
    cluster: Any = await asyncio.to_thread(make)
    try:
        cluster.adapt(minimum=0, maximum=2, interval="100ms", wait_count=5)
        options = DaskOptions(address=cluster.scheduler_address, ahead=2)
        start_worker(dsn, executor="dask", options=encode_options(options))
        references = await chancy.push_many(
            jobs.work.job(str(book), number, 0.5) for number in range(6)
        )
        for reference in references:
            await succeeded(reference, crashes=0)
        # A machine that has a job is not taken out of service, and one that has none is.
        assert set(book.count("begin").values()) == {1}
        await eventually(lambda: not cluster.scheduler_info["workers"], timeout=DEADLINE_S)
        await succeeded(await chancy.push(jobs.work.job(str(book), 7)), crashes=0)
    finally:
        await asyncio.to_thread(cluster.close)
