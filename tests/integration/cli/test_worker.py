"""``chancy worker`` in processes of its own."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest

from tests.support.command import SHOP, alone, command, inside, started
from tests.support.sql import ask
from tests.support.waiting import eventually_sync

#: A job that waits for calls in threads, which nobody can stop.
_HANGING = """\
import asyncio, time
from chancy import Chancy, Queue, job

chancy = Chancy(queues=[Queue(name="loop", executor="async")])


@job
async def hang() -> None:
    print("hanging", flush=True)
    await asyncio.gather(*(asyncio.to_thread(time.sleep, 600) for _ in range({calls})))
"""

#: A module whose import collects an object, and gets a signal meanwhile.
_SIGNALLED = """
import signal, weakref

alive = type("Lock", (), {})()
noticed = weakref.ref(alive, lambda _: signal.raise_signal(signal.SIGTERM))
del alive
"""


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(SHOP)
    return tmp_path


def test_burst_runs_what_is_there_and_ends(shop: Path, dsn: str) -> None:
    """Of an application, or of modules that are named."""
    env = {"CHANCY_DSN": dsn, "CHANCY_IMPORTS": "shop"}
    added = alone("push", "shop.add", "--arg=a=2", "--arg=b=3", cwd=shop, env=env).out.strip()
    failed = inside("push", "shop.fail", "--no-validate", "--max-attempts=1", dsn=dsn).out.strip()
    done = alone("worker", "--burst", "--log-format=json", cwd=shop, env=env)
    lines = [json.loads(line) for line in done.err.splitlines()]
    said = " ".join(line["message"] for line in lines)
    assert "stopped pid=" in said
    assert "settled=2" in said
    assert {"at", "level", "logger", "pid", "message"} <= lines[0].keys()
    assert inside("job", "wait", added, "--json", dsn=dsn).json["result"] == 5
    assert "no luck" in inside("job", "show", failed, dsn=dsn).out
    assert inside("job", "wait", failed, dsn=dsn, code=1).out.startswith("failed")


def test_a_worker_is_listed_healthy_and_ends_gracefully(shop: Path, dsn: str) -> None:
    env = {"CHANCY_DSN": dsn}
    unhealthy = inside("worker", "health", dsn=dsn, code=1).err
    assert "none is registered" in unhealthy
    answer = inside("worker", "health", "--json", dsn=dsn, code=1)
    assert (answer.json["healthy"], answer.err) == (False, "")
    assert "none is registered" in answer.json["reason"]
    with (shop / "shop.py").open("a") as source:
        source.write("\n\n@job(queue='defualt')\ndef misspelled() -> None: ...\n")
    (shop / "pyproject.toml").write_text(
        '[tool.chancy.worker]\nqueues = ["default", "typo"]\nprocesses = 0\ntag = ["kind=test"]\n'
    )
    options = ("--app", "shop:chancy")
    with started(command("worker", *options), cwd=shop, env=env) as worker:
        eventually_sync(lambda: "listening for notifications" in worker.log)
        assert re.search(
            r"serving queues=default\(\w+ \d+\) on PostgresBroker\('postgresql://postgres@127.0.0.1.*"
            r" version=\d\S* functions=\d+; listening",
            worker.log,
        )
        assert "queue_undeclared queue=typo nearest=None" in worker.log
        assert "queue_undeclared queue=defualt nearest=default" in worker.log
        (record,) = inside("worker", "list", "--json", dsn=dsn).json
        assert record["pid"] == worker.pid
        assert record["queues"] == ["default"]
        assert "kind=test" in record["tags"]
        assert str(worker.pid) in inside("worker", "list", dsn=dsn).out
        assert "1 worker alive on host" in inside("worker", "health", dsn=dsn).out
        found = inside("worker", "health", "--json", dsn=dsn).json
        assert found == {"healthy": True, "reason": None, "alive": 1}
        pushed = alone(
            "push", "shop.add", "--arg=a=2", "--wait=20", "--app=shop", "--json", cwd=shop, env=env
        )
        assert (pushed.json["result"], pushed.json["state"]) == (3, "succeeded")
        path = shop / "touched"
        inside("push", "shop.touch", "--no-validate", f'--arg=path="{path}"', "--arg=seconds=0.5",
               dsn=dsn)  # fmt: skip
        eventually_sync(path.exists)
        worker.process.send_signal(signal.SIGTERM)
        assert worker.process.wait(20) == 0
        assert path.read_text().endswith("ended\n")
        assert "stopped pid=" in worker.log
    assert inside("worker", "list", "--json", dsn=dsn).json == []


def test_a_worker_that_became_unresponsive_is_not_healthy(dsn: str) -> None:
    from chancy.worker.tags import host

    ask(
        dsn,
        "insert into chancy.workers (id, host, pid, tags, queues, version, beat_at) values"
        " (gen_random_uuid(), %s, 1, '{}', '{}', '0', now() - interval '1 minute')",
        (host(),),
    )
    said = inside("worker", "health", dsn=dsn, code=1).err
    assert (found := re.search(r"the last heartbeat was (\d+) s ago", said))
    assert int(found[1]) >= 60
    inside("worker", "health", "--within", 300, dsn=dsn)
    # A worker continues beside the tables of a newer release, and so does its check.
    ask(dsn, "update chancy.core_version set version_num = '9999'")
    inside("worker", "health", "--within", 300, dsn=dsn)


def test_a_second_signal_ends_at_once(shop: Path, dsn: str) -> None:
    with started(command("worker", "--app=shop"), cwd=shop, env={"CHANCY_DSN": dsn}) as worker:
        eventually_sync(lambda: "listening for notifications" in worker.log)
        path = shop / "touched"
        inside("push", "shop.touch", "--no-validate", f'--arg=path="{path}"', "--arg=seconds=20",
               dsn=dsn)  # fmt: skip
        eventually_sync(path.exists)
        worker.process.send_signal(signal.SIGINT)
        # The supervisor has heard it, and the worker: two that come at one moment are one signal.
        eventually_sync(lambda: worker.log.count("count=1") == 2)
        worker.process.send_signal(signal.SIGINT)
        # Its worker first releases the job, then it is gone.
        eventually_sync(lambda: inside("worker", "list", "--json", dsn=dsn).json == [])
    (job,) = inside("job", "list", "--json", dsn=dsn).json
    assert (job["state"], job["attempt"], job["crashes"]) == ("pending", 0, 0)


@pytest.mark.parametrize(
    "processes", [0, *(pytest.param(one, marks=pytest.mark.chaos) for one in (1, 2))]
)
def test_without_tables_a_worker_exits_with_3(shop: Path, empty_dsn: str, processes: int) -> None:
    options = ("--app=shop", f"--processes={processes}")
    answer = alone("worker", *options, cwd=shop, env={"CHANCY_DSN": empty_dsn}, code=3)
    assert "run `chancy migrate upgrade`" in answer.err


def test_a_signal_during_an_import_ends_the_worker_process_of_a_supervisor(
    shop: Path, empty_dsn: str
) -> None:
    """Even in a callback, in which Python ignores exceptions."""
    with (shop / "shop.py").open("a") as source:
        source.write(_SIGNALLED)
    env = {"CHANCY_DSN": empty_dsn, "CHANCY_WORKER_NUMBER": "1"}
    alone("worker", "--app=shop", "--processes=0", cwd=shop, env=env, code=-signal.SIGTERM)


def test_a_worker_that_cannot_work_is_refused(dsn: str) -> None:
    ours = "tests.support.jobs"
    for words, imports, *options in (
        ("no jobs are registered", ""),
        ("imports: there is no module", "nowhere"),
        ("names no queue", ours, "--queues=,"),
        ("needs the plugin chancy.metrics", ours, "--metrics=127.0.0.1:0"),
        ("needs the supervisor", ours, "--restart-blocked=5"),
    ):
        line = ("worker", "--processes=0", *options)
        assert words in inside(*line, dsn=dsn, imports=imports, code=2).err


def test_an_empty_variable_for_metrics_counts_as_not_set(dsn: str) -> None:
    answer = inside("worker", "--processes=0", dsn=dsn, metrics="", code=2)
    assert "no jobs are registered" in answer.err  # the next check


@pytest.mark.chaos
@pytest.mark.parametrize("calls", [1, 40])
def test_calls_in_threads_that_hang_do_not_hold_up_the_end(
    tmp_path: Path, dsn: str, calls: int
) -> None:
    """However many: the worker needs no thread of theirs for its own end."""
    (tmp_path / "shop.py").write_text(_HANGING.format(calls=calls))
    options = ("--app=shop", "--processes=0", "--shutdown-timeout=0.1", "--queues=loop")
    with started(command("worker", *options), cwd=tmp_path, env={"CHANCY_DSN": dsn}) as worker:
        eventually_sync(lambda: "listening for notifications" in worker.log)
        inside("push", "shop.hang", "--no-validate", "--queue=loop", dsn=dsn)
        eventually_sync(lambda: "hanging" in worker.log)
        worker.process.send_signal(signal.SIGTERM)
        assert worker.process.wait(30) == 0, worker.log
        assert "are left behind: chancy-helper-1" in worker.log
    assert inside("worker", "list", "--json", dsn=dsn).json == []
    (job,) = inside("job", "list", "--json", dsn=dsn).json
    assert (job["state"], job["attempt"]) == ("pending", 0)
