"""Executors that installed distributions supply."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from chancy import Chancy, Queue, State, Worker
from chancy.errors import ConfigurationError
from chancy.job.limits import Limit
from chancy.queue import executor_kind
from tests.support import jobs
from tests.support.presence import present
from tests.support.waiting import eventually

MODULE = """\
from dataclasses import dataclass
from time import perf_counter

from chancy.executors.invocation import callee, raised, returned
from chancy.queue.executor_kind import ExecutorKind
from chancy.queue.executor_options import ExecutorOptions

RAN = []


@dataclass(frozen=True, slots=True, kw_only=True)
class FibreOptions(ExecutorOptions):
    colour: str = "grey"


class FibreExecutor:
    broken = None

    def __init__(self, setup):
        self.slots = setup.concurrency
        self._setup = setup

    async def start(self):
        pass

    async def run(self, claim):
        began = perf_counter()
        try:
            called = callee(claim.func, self._setup.find)
            RAN.append((claim.func, self._setup.options.colour))
            value = called.function(**called.signature.decode(claim.arguments))
            value = await value if called.coroutine else value
            return returned(called, value, self._setup.max_payload, began)
        except BaseException as error:
            return raised(error, began)

    def interrupt(self, claim, outcome):
        return False

    async def stop(self):
        pass


def unsupported(limit, options):
    return "a fibre has no memory limit" if limit == "memory_bytes" else None


KIND = ExecutorKind(
    options=FibreOptions,
    factory="fibre_executor:FibreExecutor",
    concurrency=lambda: 7,
    unsupported=unsupported,
)
"""


@pytest.fixture
def fibre(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A distribution with the executor `fibre`, and two that cannot be imported: `lost`, and
    `lax`, which leaves open which limits it enforces."""
    (tmp_path / "fibre_executor.py").write_text(MODULE)
    (tmp_path / "lax.py").write_text(MODULE.replace("    unsupported=unsupported,\n", ""))
    folder = tmp_path / "fibres-1.2.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: fibres\nVersion: 1.2\n")
    (folder / "entry_points.txt").write_text(
        "[chancy.executors]\nfibre = fibre_executor:KIND\nlost = nowhere:KIND\nlax = lax:KIND\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "fibre_executor", raising=False)
    forget()
    yield tmp_path
    monkeypatch.undo()
    forget()


def forget() -> None:
    """Look for installed executors again."""
    executor_kind._installed.cache_clear()
    executor_kind._loaded.cache_clear()


async def test_a_queue_runs_on_an_installed_executor(fibre: Path, dsn: str) -> None:
    from fibre_executor import RAN, FibreOptions  # type: ignore[import-not-found]

    queue = Queue("fibres", executor="fibre", options=FibreOptions(colour="red"))
    async with Chancy(dsn, queues=[queue]) as chancy, Worker(chancy) as worker:
        pushed = await chancy.push_many(
            job.with_queue("fibres")
            for job in (jobs.note.job(value=1), jobs.fail.job().with_max_attempts(1))
        )
        done = [await reference.wait(30) for reference in pushed]
        assert [one.state for one in done] == [State.SUCCEEDED, State.FAILED]
        assert queue in await chancy.get_queues()
        assert "fibres" in worker.queues
    assert RAN == [("tests.support.jobs.note", "red"), ("tests.support.jobs.fail", "red")]
    with pytest.raises(ConfigurationError, match="the executor fibre takes FibreOptions, not"):
        Queue("other", executor="fibre", options=FibreOptions)


async def test_jobs_wait_for_a_worker_that_has_their_executor(
    fibre: Path, dsn: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with Chancy(dsn) as chancy:
        await chancy.declare(Queue("fibres", executor="fibre"))
        reference = await chancy.push(jobs.note.job(value=1).with_queue("fibres"))
    (fibre / "fibres-1.2.dist-info" / "entry_points.txt").unlink()
    forget()
    async with Chancy(dsn) as chancy, Worker(chancy, queues=["fibres"]):
        await eventually(lambda: "queue_broken queue=fibres" in caplog.text)
        assert "there is no executor 'fibre' here" in caplog.text
        stored = present(await chancy.get_job(reference.id))
        assert (stored.state, stored.attempt) == (State.PENDING, 0)


def test_an_executor_that_is_not_there_is_named(fibre: Path) -> None:
    for name, said in (
        ("fiber", "queue 'q': there is no executor 'fiber' here: did you mean 'fibre'"),
        ("lost", r"queue 'q': the executor 'lost' \(nowhere:KIND\) cannot be imported: Module"),
        ("lax", r"'lax' \(lax:KIND\) cannot be imported: TypeError: .* 'unsupported'"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            Chancy("postgresql://nobody@127.0.0.1:1/nowhere", queues=[Queue("q", executor=name)])


def test_a_limit_that_an_installed_executor_does_not_enforce_is_refused(fibre: Path) -> None:
    Queue("q", executor="fibre", limits=(Limit.time(5),))
    with pytest.raises(ConfigurationError, match="a fibre has no memory limit"):
        Queue("q", executor="fibre", limits=(Limit.memory(2**26),))
