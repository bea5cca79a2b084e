"""The commands of the manifests as containers run them.

As the first process of namespaces of their own, as user 10001 without capabilities, on a read-only
file system, without a network.

Nothing is built: the interpreter, its packages and this tree are mounted where an image has them.
"""

from __future__ import annotations

import os
import shlex
import shutil
import site
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

import psutil
import pytest

from chancy import Chancy, State
from tests.docs.test_deploy_files import pods
from tests.faults.worker_process import ROOT
from tests.support import jobs
from tests.support.command import Started, started
from tests.support.postgres_fixtures import OwnServer
from tests.support.waiting import eventually, eventually_sync

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(180)]

#: Commands that a superuser runs: this process, or one of sudo.
AS_ROOT = [] if os.geteuid() == 0 else ["sudo", "-n"]
UNSHARE = [*AS_ROOT, "unshare", "--mount", "--pid", "--net", "--ipc", "--fork", "--kill-child"]
LOOPBACK = (
    "import fcntl, socket, struct;"
    "fcntl.ioctl(socket.socket(), 0x8914, struct.pack('16sh14x', b'lo', 1))"
)
#: $1: the user; $2: options of /tmp; the other parameters are arguments of chancy.
SETUP = f"""
set -e
user=$1 tmp=$2; shift 2
mount --make-rprivate /
mount -t proc proc /proc
mount -t tmpfs image /mnt
for part in python packages source socket; do mkdir /mnt/$part; done
mount --bind {{python}} /mnt/python
mount --bind {{packages}} /mnt/packages
mount --bind {{source}} /mnt/source
mount --bind {{socket}} /mnt/socket
mount -t tmpfs -o $tmp tmpfs /tmp
mount -t tmpfs -o ro tmpfs /dev/shm
for part in python packages source; do mount -o remount,bind,ro /mnt/$part; done
mount -o remount,ro /mnt
mount -o remount,bind,ro /
LD_LIBRARY_PATH=/mnt/python/lib /mnt/python/bin/{{name}} -c {shlex.quote(LOOPBACK)}
cd /
exec env -i PATH=/usr/bin:/bin HOME=/nonexistent PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \\
  LD_LIBRARY_PATH=/mnt/python/lib PYTHONPATH=/mnt/packages:/mnt/source \\
  CHANCY_DSN="postgresql:///postgres?host=/mnt/socket&port={{port}}&user=postgres" \\
  CHANCY_PLUGINS=chancy.metrics,chancy.dashboard CHANCY_IMPORTS=tests.support.jobs \\
  CHANCY_DASHBOARD_USER=ops CHANCY_DASHBOARD_PASSWORD=very-secret \\
  setpriv --reuid=$user --regid=$user --clear-groups --bounding-set=-all --inh-caps=-all \\
  --no-new-privs /mnt/python/bin/{{name}} -m chancy.cli "$@"
"""


@pytest.fixture(autouse=True)
def allowed() -> None:
    """Skips where namespaces cannot be made."""
    if shutil.which("unshare") is None or shutil.which("setpriv") is None:
        pytest.skip("this test needs the programs unshare and setpriv (util-linux)")
    if subprocess.run([*UNSHARE, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this test needs root, or sudo without a password, to make namespaces")


@pytest.fixture
def shared_directory(open_directory: Path) -> Path:
    """Where the account of the server makes its socket, which user 10001 may use."""
    open_directory.chmod(0o777)
    return open_directory


class Container:
    """A command of chancy as the first process of its namespaces."""

    def __init__(self, outer: Started) -> None:
        self._outer = outer

    @property
    def first(self) -> psutil.Process:
        """Its first process, as it is seen from outside."""

        def found() -> list[psutil.Process]:
            inside = psutil.Process(self._outer.pid).children(recursive=True)
            return [one for one in inside if _words(one)[1:3] == ["-m", "chancy.cli"]]

        return eventually_sync(found)[0]

    @property
    def log(self) -> str:
        return self._outer.log

    def wait(self, timeout_s: float = 40) -> int:
        """Its exit code."""
        return self._outer.process.wait(timeout_s)

    def terminate(self) -> int:
        """Send SIGTERM to its first process, and return its exit code."""
        subprocess.run([*AS_ROOT, "kill", "-TERM", str(self.first.pid)], check=True)
        return self.wait()

    def get(self, port: int, path: str) -> str:
        """What it answers to a probe from inside; empty if it does not."""
        asking = (
            f"import urllib.request as r; print(r.urlopen('http://127.0.0.1:{port}{path}').read())"
        )
        enter = [*AS_ROOT, "nsenter", "--net", "--target", str(self.first.pid)]
        asked = [*enter, sys.executable, "-c", asking]
        return subprocess.run(asked, capture_output=True, text=True, check=False).stdout


@contextmanager
def container(name: str, port: int, socket: Path, folder: Path, *more: str) -> Generator[Container]:
    """Run the container of a workload, with more arguments."""
    pod, spec = next((pod, spec) for known, pod, spec in pods() if known == name)
    writable = any(one["mountPath"] == "/tmp" for one in spec.get("volumeMounts", ()))
    script = SETUP.format(
        python=sys.base_prefix,
        packages=site.getsitepackages()[0],
        source=ROOT,
        socket=socket,
        name=Path(sys.executable).resolve().name,
        port=port,
    )
    user = str(pod["securityContext"]["runAsUser"])
    mounted = "size=256m,mode=1777" if writable else "ro"
    words = [*UNSHARE, "sh", "-c", script, "sh", user, mounted, *spec["args"], *more]
    with started(words, cwd=folder) as outer:
        yield Container(outer)


def _words(process: psutil.Process) -> list[str]:
    """The command line of a process; empty if it has ended meanwhile."""
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


def check_confined(process: psutil.Process) -> None:
    """It is the first process, of the right user, without privileges, on a file system that it
    cannot write to."""
    mounts = [
        line.split() for line in Path(f"/proc/{process.pid}/mountinfo").read_text().splitlines()
    ]
    assert "ro" in next(one[5] for one in mounts if one[4] == "/").split(",")
    status = dict(
        line.split(":\t", 1)
        for line in Path(f"/proc/{process.pid}/status").read_text().splitlines()
        if ":\t" in line
    )
    assert status["NSpid"].split()[-1] == "1"
    assert set(status["Uid"].split()) == {"10001"}
    assert {status[name] for name in ("CapEff", "CapPrm", "CapBnd")} == {"0" * 16}
    assert status["NoNewPrivs"] == "1"


async def test_the_commands_run_and_stop_as_containers(
    own_server: OwnServer, shared_directory: Path, tmp_path: Path
) -> None:
    server = own_server(migrated=False, unix_socket_directories=str(shared_directory))
    where = server.port, shared_directory, tmp_path
    with container("chancy-migrate", *where) as migrating:
        assert migrating.wait() == 0, migrating.log

    async with Chancy(server.dsn()) as chancy:
        with container("chancy-worker", *where) as worker:
            eventually_sync(lambda: worker.get(9100, "/readyz"))
            check_confined(worker.first)
            done = await chancy.push(jobs.nap.job(seconds=3).with_queue("default"))
            await eventually(lambda: state_is(chancy, done.id, State.RUNNING))
            assert worker.terminate() == 0, worker.log
            assert await state_is(chancy, done.id, State.SUCCEEDED), worker.log
        with container("chancy-worker", *where, "--shutdown-timeout=1") as worker:
            long = await chancy.push(jobs.nap.job(seconds=60).with_queue("default"))
            await eventually(lambda: state_is(chancy, long.id, State.RUNNING))
            assert worker.terminate() == 0, worker.log
            assert await state_is(chancy, long.id, State.PENDING), worker.log
        assert await chancy.get_workers() == []

    with container("chancy-dashboard", *where) as dashboard:
        eventually_sync(lambda: dashboard.get(8025, "/static/icon.svg"))
        check_confined(dashboard.first)
        assert dashboard.terminate() == 0, dashboard.log


async def state_is(chancy: Chancy, id: UUID, state: State) -> bool:
    job = await chancy.get_job(id)
    return job is not None and job.state is state
