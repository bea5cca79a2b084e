"""``chancy worker --processes N``: real processes, real signals."""

from __future__ import annotations

import functools
import os
import re
import signal
import sys
from pathlib import Path

import psutil
import pytest

from chancy.worker.supervisor.supervisor import MOST_DEATHS, SESSIONS
from tests.support.command import SHOP, Started, command, inside, started
from tests.support.waiting import eventually_sync

#: Runs a supervisor over any Python program.
_DRIVER = """\
import asyncio, logging, sys
from chancy.clock import Backoff
from chancy.worker.supervisor import supervisor
# It waits for a tenth as long before it starts a program again.
supervisor.Backoff = lambda base_s, cap_s: Backoff(base_s=base_s / 10, cap_s=cap_s / 10)
logging.basicConfig(level=logging.INFO, format="%(message)s")
program, processes, once = sys.argv[1:]
command = [sys.executable, "-c", program]
made = supervisor.Supervisor(command, processes=int(processes), once=once == "once")
sys.exit(asyncio.run(made.run()))
"""


def _supervising(program: str, *, processes: int, once: bool = False) -> list[str]:
    how = "once" if once else "on"
    return [sys.executable, "-c", _DRIVER, program, str(processes), how]


def _pids(supervisor: Started) -> list[int]:
    return [int(pid) for pid in re.findall(r"child_started number=\d+ pid=(\d+)", supervisor.log)]


def _living(supervisor: Started) -> set[int]:
    return {child.pid for child in psutil.Process(supervisor.pid).children() if _lives(child.pid)}


def _says(supervisor: Started, words: str) -> bool:
    return f"{words}\n" in supervisor.log


def _gone(pids: list[int]) -> bool:
    return not any(map(_lives, pids))


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


#: A job that runs until the test lets it end.
_HELD = """

@job
def hold(path: str, gate: str) -> None:
    with open(path, "a") as file:
        file.write("begun\\n")
    while not os.path.exists(gate):
        time.sleep(0.01)
    with open(path, "a") as file:
        file.write("ended\\n")
"""


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(SHOP + _HELD)
    return tmp_path


def _push_held(shop: Path, dsn: str) -> tuple[Path, Path]:
    """Push a job and wait until it runs; returns the file that it writes, and its gate."""
    path, gate = shop / "held", shop / "gate"
    arguments = (f'--arg=path="{path}"', f'--arg=gate="{gate}"')
    inside("push", "shop.hold", "--no-validate", *arguments, dsn=dsn)
    eventually_sync(lambda: path.exists() and path.read_text() == "begun\n")
    return path, gate


def _workers(dsn: str) -> set[int]:
    return {one["pid"] for one in inside("worker", "list", "--json", dsn=dsn).json}


def test_workers_are_replaced_when_they_die_and_drain_on_sigterm(shop: Path, dsn: str) -> None:
    line = command("worker", "--app=shop", "--processes=2", "--shutdown-timeout=20")
    with started(line, cwd=shop, env={"CHANCY_DSN": dsn}) as supervisor:
        eventually_sync(lambda: supervisor.log.count("serving queues=default(") == 2)
        assert f"processes=2 sessions={2 * SESSIONS}" in supervisor.log
        first = _pids(supervisor)
        assert _workers(dsn) == {*first}
        assert {os.getsid(pid) for pid in first} == {*first}

        os.kill(first[0], signal.SIGKILL)
        eventually_sync(lambda: "child_died" in supervisor.log)
        assert f"pid={first[0]} was killed by SIGKILL" in supervisor.log
        eventually_sync(lambda: supervisor.log.count("serving queues=default(") == 3)
        assert _living(supervisor) == {*_pids(supervisor)[1:]}

        path = shop / "touched"
        inside("push", "shop.touch", "--no-validate", f'--arg=path="{path}"', "--arg=seconds=1",
               dsn=dsn)  # fmt: skip
        eventually_sync(path.exists)
        supervisor.process.send_signal(signal.SIGTERM)
        assert supervisor.process.wait(20) == 0
        assert path.read_text().endswith("ended\n")
        assert "supervisor_stopped" in supervisor.log
        assert _gone(_pids(supervisor))
    assert _workers(dsn) <= {first[0]}


def test_a_worker_that_is_asked_to_stop_drains_and_is_replaced(shop: Path, dsn: str) -> None:
    line = command("worker", "--app=shop", "--processes=1")
    with started(line, cwd=shop, env={"CHANCY_DSN": dsn}) as supervisor:
        eventually_sync(lambda: "serving queues=default(" in supervisor.log)
        path, gate = _push_held(shop, dsn)
        (worker,) = inside("worker", "list", "--json", dsn=dsn).json
        supervisor.process.send_signal(signal.SIGUSR1)
        status = f"child_status number=1 pid={worker['pid']} state=works"
        eventually_sync(lambda: status in supervisor.log)
        inside("worker", "stop", worker["id"], dsn=dsn)
        (asked,) = inside("worker", "list", "--json", dsn=dsn).json
        assert asked["stop_asked_at"] is not None
        gate.touch()
        eventually_sync(lambda: _gone([worker["pid"]]))
        assert path.read_text().endswith("ended\n")
        assert f"worker_stop_requested id={worker['id']}" in supervisor.log
        eventually_sync(lambda: supervisor.log.count("serving queues=default(") == 2)
        assert _workers(dsn) == _living(supervisor) == {_pids(supervisor)[1]}
        assert "child_died" not in supervisor.log
    inside("worker", "stop", worker["id"], dsn=dsn, code=1)


def test_a_worker_without_a_supervisor_ends_when_it_is_asked_to_stop(shop: Path, dsn: str) -> None:
    line = command("worker", "--app=shop", "--processes=0", "--shutdown-timeout=0.2")
    with started(line, cwd=shop, env={"CHANCY_DSN": dsn}) as worker:
        eventually_sync(lambda: "serving queues=default(" in worker.log)
        path = shop / "touched"
        id = inside("push", "shop.touch", "--no-validate", f'--arg=path="{path}"',
                    "--arg=seconds=600", dsn=dsn).out.strip()  # fmt: skip
        eventually_sync(path.exists)
        (record,) = inside("worker", "list", "--json", dsn=dsn).json
        inside("worker", "stop", record["id"], dsn=dsn)
        assert worker.process.wait(30) == 0
    job = inside("job", "show", id, "--json", dsn=dsn).json
    assert (job["state"], job["attempt"]) == ("pending", 0)
    assert _workers(dsn) == set()


def test_workers_drain_when_the_supervisor_is_killed(shop: Path, dsn: str) -> None:
    line = command("worker", "--app=shop", "--processes=1")
    with started(line, cwd=shop, env={"CHANCY_DSN": dsn}) as supervisor:
        eventually_sync(lambda: "serving queues=default(" in supervisor.log)
        children = _pids(supervisor)
        path = shop / "touched"
        inside("push", "shop.touch", "--no-validate", f'--arg=path="{path}"', "--arg=seconds=0.5",
               dsn=dsn)  # fmt: skip
        eventually_sync(path.exists)
        supervisor.process.kill()
        eventually_sync(lambda: _gone(children))
        assert path.read_text().endswith("ended\n")
    assert _workers(dsn) == set()


def test_a_database_that_cannot_be_reached_at_the_start_is_final(shop: Path) -> None:
    line = command("worker", "--app=shop", "--processes=1")
    away = {"CHANCY_DSN": "postgresql://ann:secret@127.0.0.1:1/shop"}
    with started(line, cwd=shop, env=away) as supervisor:
        assert supervisor.process.wait(30) == 4
        assert "(the database cannot be reached, or refuses); not restarting" in supervisor.log
        assert 'database "shop" at 127.0.0.1:1 cannot be reached' in supervisor.log
        assert "child_died" not in supervisor.log
        assert "secret" not in supervisor.log


@pytest.mark.chaos
def test_burst_ends_when_every_worker_is_done(shop: Path, dsn: str) -> None:
    ids = [
        inside("push", "shop.add", "--no-validate", f"--arg=a={n}", dsn=dsn).out.strip()
        for n in range(6)
    ]
    line = command("worker", "--app=shop", "--processes=2", "--burst")
    with started(line, cwd=shop, env={"CHANCY_DSN": dsn}) as supervisor:
        assert supervisor.process.wait(30) == 0, supervisor.log
        assert supervisor.log.count("child_done") == 2
    results = [inside("job", "wait", id, "--json", dsn=dsn).json["result"] for id in ids]
    assert results == [1, 2, 3, 4, 5, 6]


def test_a_wrong_configuration_is_final(shop: Path, dsn: str) -> None:
    line = command("worker", "--app=shop:nothing", "--processes=1")
    with started(line, cwd=shop, env={"CHANCY_DSN": dsn}) as supervisor:
        assert supervisor.process.wait(30) == 2
        assert "supervisor_gave_up exit_code=2" in supervisor.log
        assert "try shop:chancy" in supervisor.log
        assert "child_died" not in supervisor.log


#: A job that ends its worker the first time, and writes a file the second.
_LEAVING = """\
import os
import pathlib
from chancy import Chancy, Queue, job

chancy = Chancy(queues=[Queue(name="threads", executor="thread")])

@job(queue="threads")
def leave(status: int, path: str) -> None:
    file = pathlib.Path(path)
    if file.exists():
        file.write_text("again")
        return
    file.write_text("once")
    os._exit(status)
"""


def _push_leaving(directory: Path, dsn: str, status: int) -> str:
    (directory / "leaving.py").write_text(_LEAVING)
    arguments = [f"--arg=status={status}", f'--arg=path="{directory / "left"}"']
    return inside(
        "push", "leaving.leave", "--no-validate", "--queue=threads", *arguments, dsn=dsn
    ).out.strip()


@pytest.mark.chaos
def test_a_job_that_ends_its_process_reports_nothing_of_the_worker(
    tmp_path: Path, dsn: str
) -> None:
    id = _push_leaving(tmp_path, dsn, 3)  # what a worker exits with where the tables are missing
    line = command("worker", "--app=leaving", "--processes=1")
    with started(line, cwd=tmp_path, env={"CHANCY_DSN": dsn}) as supervisor:
        done = inside("job", "wait", id, "--timeout=30", "--json", dsn=dsn).json
        assert done["state"] == "succeeded", supervisor.log
        assert "exited with status 3" in supervisor.log
        assert supervisor.log.count("child_died") == 1
        supervisor.process.send_signal(signal.SIGTERM)
        assert supervisor.process.wait(30) == 0
        assert "supervisor_gave_up" not in supervisor.log


@pytest.mark.chaos
def test_a_burst_is_not_done_where_a_job_has_ended_its_process(tmp_path: Path, dsn: str) -> None:
    _push_leaving(tmp_path, dsn, 0)
    line = command("worker", "--app=leaving", "--processes=1", "--burst")
    with started(line, cwd=tmp_path, env={"CHANCY_DSN": dsn}) as supervisor:
        assert supervisor.process.wait(30) == 0, supervisor.log
        assert re.findall("child_died|child_done", supervisor.log) == ["child_died", "child_done"]


def test_a_child_that_keeps_dying_ends_the_supervisor(tmp_path: Path) -> None:
    healthy = "import pathlib, time, sys; me = pathlib.Path('first')\n"
    program = healthy + (
        "try: me.touch(exist_ok=False)\n"
        "except FileExistsError: sys.exit(7)\n"
        "print('healthy', flush=True); time.sleep(60)"
    )
    with started(_supervising(program, processes=2), cwd=tmp_path) as supervisor:
        assert supervisor.process.wait(40) == 7
        assert supervisor.log.count("child_died") == 4
        assert "exited with status 7, the 5th failure within a minute" in supervisor.log
        assert "child_ended" in supervisor.log  # the healthy one, which was stopped
        assert _gone(_pids(supervisor))


#: Reports, in a program of a supervisor, that its worker is registered.
_REGISTER = """\
import json, os, pathlib, socket, sys, time, uuid
link = socket.socket(fileno=int(os.environ["CHANCY_SUPERVISOR_LINE"]))
report = {"worker": str(uuid.uuid4()), "dsn": None, "schema": "", "heartbeat_s": 5.0,
          "blocked_s": 0.0, "queues": [], "broken": {}}
link.sendall(json.dumps(report).encode() + b"\\n")
"""


def test_a_worker_that_its_jobs_keep_killing_does_not_end_the_supervisor(tmp_path: Path) -> None:
    with started(_supervising(_REGISTER + "os._exit(7)", processes=1), cwd=tmp_path) as supervisor:
        eventually_sync(
            lambda: (
                supervisor.log.count("exited with status 7") > MOST_DEATHS
                or "supervisor_gave_up" in supervisor.log
            ),
            timeout=60,
        )
        assert "supervisor_gave_up" not in supervisor.log


def test_an_outage_does_not_end_the_workers_that_run(tmp_path: Path) -> None:
    # The second worker cannot reach the database, while the first one has been ready.
    program = (
        "import os, pathlib, sys, time\n"
        "ready = pathlib.Path('ready')\n"
        "if os.environ['CHANCY_WORKER_NUMBER'] == '2':\n"
        "    while not ready.exists(): time.sleep(0.05)\n"
        f"    sys.exit(4)\n{_REGISTER}"
        "time.sleep(300)"
    )
    with started(_supervising(program, processes=2), cwd=tmp_path) as supervisor:
        eventually_sync(lambda: "child_ready number=1" in supervisor.log)
        (tmp_path / "ready").touch()
        eventually_sync(
            lambda: (
                supervisor.log.count("exited with status 4") > MOST_DEATHS
                or "supervisor_gave_up" in supervisor.log
            ),
            timeout=60,
        )
        assert "supervisor_gave_up" not in supervisor.log


@pytest.mark.parametrize("status", [1, 3])
def test_a_worker_that_cannot_start_again_stops_no_other(tmp_path: Path, status: int) -> None:
    """For example with 3 because the tables are newer: that does not stop workers that run."""
    program = (
        "import os, pathlib, sys, time\n"
        "newer = pathlib.Path('newer')\n"
        "while os.environ['CHANCY_WORKER_NUMBER'] == '2' and not newer.exists(): time.sleep(0.05)\n"
        f"if newer.exists(): sys.exit({status})\n{_REGISTER}"
        "time.sleep(300)"
    )
    with started(_supervising(program, processes=2), cwd=tmp_path) as supervisor:
        eventually_sync(lambda: "child_ready number=1" in supervisor.log)
        (tmp_path / "newer").touch()
        eventually_sync(
            lambda: (
                supervisor.log.count(f"exited with status {status}") > MOST_DEATHS
                or "supervisor_gave_up" in supervisor.log
            ),
            timeout=60,
        )
        assert "supervisor_gave_up" not in supervisor.log
        assert ("(schema mismatch)" in supervisor.log) == (status == 3)
        [first] = re.findall(r"child_started number=1 pid=(\d+)", supervisor.log)
        os.kill(int(first), signal.SIGKILL)
        assert supervisor.process.wait(60) == status
        assert "supervisor_gave_up" in supervisor.log


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGINT])
def test_each_signal_is_handed_on_and_the_third_kills(tmp_path: Path, first: int) -> None:
    program = (
        "import signal, time\n"
        "words = iter(['child heard', 'child heard again'])\n"
        "signal.signal(signal.SIGTERM, lambda *_: print(next(words), flush=True))\n"
        "print('child ready', flush=True)\n"
        "while True: time.sleep(0.1)"
    )
    with started(_supervising(program, processes=1), cwd=tmp_path) as supervisor:
        eventually_sync(lambda: "child ready" in supervisor.log)
        for heard in ("child heard", "child heard again"):
            supervisor.process.send_signal(first)
            eventually_sync(functools.partial(_says, supervisor, heard))
            assert _living(supervisor) == {*_pids(supervisor)}
        supervisor.process.send_signal(first)
        assert supervisor.process.wait(30) == 0
        assert "was killed by SIGKILL" in supervisor.log


def test_a_program_that_cannot_be_started_is_given_up(tmp_path: Path) -> None:
    driver = _DRIVER.replace("[sys.executable, ", "['/nonexistent/python', ")
    with started([sys.executable, "-c", driver, "", "1", "on"], cwd=tmp_path) as supervisor:
        assert supervisor.process.wait(40) == 1
        assert "could not be started" in supervisor.log
