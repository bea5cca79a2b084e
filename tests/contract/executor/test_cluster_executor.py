"""The executor of clusters and the hosts of its runs, on a cluster that breaks as a test asks."""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import platform
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from chancy.attempt.outcome import Cancelled, Lost, Outcome, Raised, Released, Returned, TimedOut
from chancy.context.host import Progress
from chancy.errors import ConfigurationError
from chancy.executors.base import NO_CALLBACKS, AttemptCallbacks
from chancy.executors.cluster import executor
from chancy.executors.cluster.executor import ClusterExecutor, ClusterLost, Room, RunLost
from chancy.executors.cluster.hosting import deliver, host
from chancy.executors.cluster.messages import HostedCall, HostMessage, StopRun, WorkerMessage
from chancy.executors.setup import ExecutorSetup
from chancy.job.limits import NO_LIMITS, Limits
from chancy.queue.executor_kind import decode_options
from chancy.queue.executor_options import DaskOptions, RayOptions, encode_options
from chancy.queue.queue import Queue
from tests.contract.executor.calls import Place, claim_of, end_of, find
from tests.contract.executor.test_checkpoints import Store
from tests.support.waiting import eventually


class ThreadCluster:
    """A cluster whose tasks are threads of this process."""

    def __init__(self) -> None:
        self.found = Room(1)
        self.down = False
        #: Whether its library cancels a call by itself.
        self.cancels = False
        #: Whether messages of the worker are lost.
        self.deaf = False
        self.references: list[str] = []
        self.calls: list[HostedCall] = []
        #: Ends all runs with this error.
        self.fault: asyncio.Future[None]
        self.hosts: list[asyncio.Task[Outcome]] = []
        #: When it runs its task again, as after it has taken a machine out of service.
        self.again: asyncio.Event | None = None
        self._received: Callable[[bytes], None]

    async def connect(self, received: Callable[[bytes], None]) -> None:
        if self.down:
            raise OSError("no route to the cluster")
        self._received = received
        self.fault = asyncio.get_running_loop().create_future()

    async def close(self) -> None:
        pass

    async def put(self, arguments: str) -> object:
        self.references.append(arguments)
        return len(self.references) - 1

    async def submit(self, call: HostedCall, arguments: object) -> Outcome:
        self.calls.append(call)
        if isinstance(arguments, int):
            call = call.with_arguments(self.references[arguments])
        loop, received = asyncio.get_running_loop(), self._received

        def send(message: HostMessage) -> None:
            loop.call_soon_threadsafe(received, pickle.dumps(message))

        call = pickle.loads(pickle.dumps(call))

        async def task(number: int) -> Outcome:
            return await asyncio.to_thread(host, call, f"thread {number}", send)

        tasks = [asyncio.create_task(task(0))]
        if self.again is not None:
            await self.again.wait()
            tasks.append(asyncio.create_task(task(1)))
        self.hosts += tasks
        waited: list[asyncio.Future[Any]] = [tasks[-1], self.fault]
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        if self.fault.done():
            self.fault.result()
        return await tasks[-1]

    async def send(self, run: str, place: str, message: WorkerMessage) -> None:
        if not self.deaf:
            deliver([pickle.dumps(message)])

    async def room(self, started: int) -> Room:
        if self.cancels:
            raise asyncio.CancelledError
        if self.down:
            raise OSError("no route to the cluster")
        return self.found


@pytest.fixture(autouse=True)
def frequent_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """At its room, and for whether it is back."""
    monkeypatch.setattr("chancy.executors.cluster.executor._LOOK_S", 0.1)


@pytest.fixture
def cluster() -> ThreadCluster:
    return ThreadCluster()


@asynccontextmanager
async def executor_on(
    cluster: ThreadCluster,
    *,
    limits: Limits = NO_LIMITS,
    callbacks: AttemptCallbacks = NO_CALLBACKS,
    **options: float,
) -> AsyncGenerator[ClusterExecutor]:
    setup = ExecutorSetup(
        concurrency=8,
        find=find,
        max_payload=100_000,
        options=DaskOptions(**options),  # type: ignore[arg-type]
        limits=limits,
        callbacks=callbacks,
    )
    made = ClusterExecutor(setup, cluster)
    await made.start()
    try:
        yield made
    finally:
        await made.stop()
        # Those that are left end sooner than they would without messages.
        left = Released("the test is over")
        while not all(one.done() for one in cluster.hosts):
            deliver([pickle.dumps(StopRun(call.run, left)) for call in cluster.calls])
            await asyncio.wait(cluster.hosts, timeout=0.05)
        await asyncio.gather(*cluster.hosts, return_exceptions=True)


async def test_a_cluster_runs_functions_and_gets_large_arguments_by_reference(
    cluster: ThreadCluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with executor_on(cluster) as it:
        assert it.broken is None
        large, fails = claim_of("echo", value="x" * 90_000), claim_of("raise_plain")
        logs = claim_of("log_async", text="from afar")
        outcomes = await asyncio.gather(*map(it.run, (large, fails, logs)))
        assert isinstance(outcomes[0], Returned)
        assert len(outcomes[0].result or "") == 90_002
        assert [call.claim.arguments for call in cluster.calls] == [None, "{}", logs.arguments]
        assert isinstance(outcomes[1], Raised)
        assert outcomes[1].failure.message == "the reason"
        logged = [record for record in caplog.records if record.message == "from afar"]
        assert [vars(record)["job_id"] for record in logged] == [str(logs.id)]


async def test_checkpoints_and_progress_reach_the_worker(
    cluster: ThreadCluster, tmp_path: Path
) -> None:
    store, reports = Store(), list[Progress]()
    callbacks = AttemptCallbacks(
        report=lambda claim, progress: reports.append(progress), store=store.keep
    )
    async with executor_on(cluster, callbacks=callbacks) as it:
        outcome = await it.run(claim_of("two_checkpoints_async", path=str(tmp_path / "marks")))
        assert isinstance(outcome, Returned)
        assert outcome.result == '[1,[1,"zwei"]]'
        assert list(store.last) == ["one", "two"]
        await it.run(claim_of("tell_and_wait", until="/"))
        assert reports == [Progress(0.5, "half")]


async def test_a_running_job_is_interrupted_and_one_that_waits_never_starts(
    cluster: ThreadCluster, place: Place
) -> None:
    async with executor_on(cluster) as it:
        claim = place.waiting()
        running = asyncio.create_task(it.run(claim))
        await place.has_started()
        assert it.interrupt(claim, Cancelled("enough"))
        assert await end_of(running) == Cancelled("enough")
        assert place.stopped.exists()
        waiting = claim_of("mark", path=str(place.other))
        running = asyncio.create_task(it.run(waiting))
        await eventually(lambda: len(cluster.calls) == 2)
        assert it.interrupt(waiting, Cancelled("never mind"))
        assert await end_of(running) == Cancelled("never mind")
    assert not place.other.exists()


async def test_limits_hold_in_the_cluster(cluster: ThreadCluster, place: Place) -> None:
    async with executor_on(cluster, limits=Limits(time_s=0.2), grace_s=0.1) as it:
        assert isinstance(await it.run(place.waiting("swallow_all")), TimedOut)


async def test_a_lost_host_is_a_crash_once_its_job_has_started(
    cluster: ThreadCluster, place: Place
) -> None:
    async with executor_on(cluster) as it:
        running = asyncio.create_task(it.run(place.waiting()))
        await place.has_started()
        cluster.fault.set_exception(RunLost("the machine burns"))
        outcome = await end_of(running)
        assert isinstance(outcome, Lost)
        assert outcome.why == "the machine burns, on thread 0"
        assert await it.run(claim_of("nothing")) == Released("the machine burns")


async def test_a_killed_process_of_a_job_is_a_crash(cluster: ThreadCluster) -> None:
    async with executor_on(cluster) as it:
        outcome = await it.run(claim_of("kill_itself", signum=9))
        assert isinstance(outcome, Lost)
        assert "SIGKILL" in outcome.why
        assert outcome.host == platform.node()


async def test_a_lost_cluster_costs_no_attempt_and_no_job_runs_twice_at_once(
    cluster: ThreadCluster, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert executor._MARGIN_S >= 1.0, "its host ends the job before the attempt ends"
    monkeypatch.setattr(executor, "_MARGIN_S", 3.0)
    async with executor_on(cluster, contact_timeout_s=3) as it:
        running = asyncio.create_task(it.run(place.waiting()))
        pid = int(await place.has_started())
        cluster.down = cluster.deaf = True
        cluster.fault.set_exception(ClusterLost("the scheduler is gone"))
        assert isinstance(await end_of(running), Released)
        assert not psutil.pid_exists(pid)
        assert it.slots == 0
        assert it.broken is not None
        cluster.down = cluster.deaf = False
        await eventually(lambda: it.broken is None)
        assert isinstance(await it.run(claim_of("nothing")), Returned)


async def test_a_connection_whose_library_cancels_a_call_is_made_again(
    cluster: ThreadCluster,
) -> None:
    async with executor_on(cluster) as it:
        cluster.cancels = True
        await eventually(lambda: it.broken is not None)
        cluster.cancels = False
        await eventually(lambda: it.broken is None)
        assert isinstance(await it.run(claim_of("nothing")), Returned)


async def test_a_cluster_that_refuses_tasks_breaks_the_queue_and_fails_no_job(
    cluster: ThreadCluster,
) -> None:
    async with executor_on(cluster) as it:
        cluster.fault.set_exception(ModuleNotFoundError("No module named 'chancy'"))
        outcome = await it.run(claim_of("nothing"))
        assert isinstance(outcome, Released)
        assert "cannot run jobs: ModuleNotFoundError: No module named 'chancy'" in outcome.why
        assert it.broken == outcome.why
        await eventually(lambda: it.broken is None)


async def test_a_job_ends_when_its_worker_is_gone(cluster: ThreadCluster, place: Place) -> None:
    async with executor_on(cluster, contact_timeout_s=3) as it:
        running = asyncio.create_task(it.run(place.waiting()))
        pid = int(await place.has_started())
        cluster.deaf = True
        assert await end_of(running) == Released("its worker is gone")
        assert not psutil.pid_exists(pid)
        assert pid != os.getpid()


async def test_a_job_starts_once_although_the_cluster_runs_its_task_again(
    cluster: ThreadCluster, place: Place
) -> None:
    cluster.again = asyncio.Event()
    async with executor_on(cluster) as it:
        claim = claim_of("wait_for_file", started=str(place.started), until=str(place.until))
        running = asyncio.create_task(it.run(claim))
        await place.has_started()
        place.started.unlink()
        cluster.again.set()
        outcome = await end_of(running)
        assert isinstance(outcome, Released)
        assert outcome.why == "the cluster runs it again on thread 1, after thread 0"
        place.until.touch()  # the first host gets no messages any more
    assert not place.started.exists()


async def test_slots_follow_the_room_of_the_cluster(cluster: ThreadCluster) -> None:
    cluster.found = Room(3)
    async with executor_on(cluster, ahead=2) as it:
        assert (it.slots, it.broken) == (5, None)
        cluster.found = Room(100)
        await eventually(lambda: it.slots == 8)
        cluster.found = Room(0, "no machine has {'GPU': 1}")
        await eventually(lambda: it.broken == "no machine has {'GPU': 1}")
        assert it.slots == 0
    async with executor_on(cluster, scales=True) as it:
        assert (it.slots, it.broken) == (1, None)


def test_options_are_checked_and_stored() -> None:
    options = DaskOptions(address="tcp://boss:8786", resources={"GPU": 1})
    text = encode_options(options)
    assert text == '{"resources": {"GPU": 1}, "address": "tcp://boss:8786"}'
    assert decode_options(text, "dask") == options
    assert hash(Queue("train", executor="dask", options=options))
    wrong: list[dict[str, Any]] = [
        {"resources": ["GPU"]},
        {"resources": {"GPU": 0}},
        {"ahead": 0},
        {"address": 1},
    ]
    for given in wrong:
        with pytest.raises(ConfigurationError):
            DaskOptions(**given)


def test_options_of_ray_are_checked_and_stored() -> None:
    options = RayOptions(num_cpus=0.5, num_gpus=2, resources={"TPU": 1})
    text = encode_options(options)
    assert text == '{"resources": {"TPU": 1}, "num_cpus": 0.5, "num_gpus": 2}'
    assert decode_options(text, "ray") == options
    assert options.needs == {"CPU": 0.5, "GPU": 2, "TPU": 1}
    assert RayOptions().needs == {"CPU": 1.0}
    wrong: dict[str, dict[str, Any]] = {
        "as in ray://head:10001": {"address": "head:6379"},
        "num_cpus": {"num_cpus": 0},
        "num_gpus=1.5 must be whole": {"num_gpus": 1.5},
        "set num_gpus instead": {"resources": {"GPU": 1}},
    }
    for why, given in wrong.items():
        with pytest.raises(ConfigurationError, match=why):
            RayOptions(**given)
