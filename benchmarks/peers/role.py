"""One role of one queue in a separate process: ``role.py QUEUE SETTINGS VERB [NUMBERS…]``.

    setup                        create the tables
    single JOBS                  push one job after the other
    tasks JOBS TASKS             push JOBS jobs, one after the other in each of TASKS tasks
    bulk JOBS CALL WARM          push CALL jobs a call; the first WARM jobs are not counted
    paced JOBS SECONDS           push one job every SECONDS
    offered JOBS RATE            push RATE jobs a second, whether or not earlier calls have returned
    chain STEPS                  push a workflow of STEPS steps, one after the other
    fan STEPS                    push a workflow of STEPS steps between two steps
    work                         run jobs until the end of the input

Reads the DSN from CHANCY_BENCH_DSN; the tally of a worker is written to CHANCY_BENCH_TALLY. The
last line of the output is one JSON object. Runs in the environment of chancy and in that of a peer,
which can import only this package and the tally from the checkout. Both must run on Python 3.8,
which some peers need.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if __name__ == "__main__" and "benchmarks" not in sys.modules:
    # A package of this name, without access to the rest of the checkout.
    _package = ModuleType("benchmarks")
    _package.__path__ = [str(Path(__file__).parents[1])]
    sys.modules["benchmarks"] = _package

if TYPE_CHECKING:
    from benchmarks.peers.peer import Peer

#: The number of a job whose start is not recorded.
UNCOUNTED = 10**9
_WARM = 3
#: Steps of the workflow that runs before the measured one.
_WARM_STEPS = 200
#: Sessions of a client that pushes one job at a time, and of one with concurrent pushes.
_ONE, _MANY = 1, 10


async def run(peer: Peer, verb: str, numbers: Sequence[str]) -> dict[str, Any]:
    """Run a role and return its result."""
    if verb in ("setup", "work"):
        await (peer.set_up() if verb == "setup" else peer.work())
        return {}
    if verb in ("chain", "fan"):
        (steps,) = numbers
        await peer.open(_ONE)
        return await _flow(peer.push_chain if verb == "chain" else peer.push_fan, int(steps), verb)
    given = [json.loads(number) for number in numbers]
    if verb == "bulk":
        await _open(peer, peer.concurrency, warm=given.pop())
        return await _bulk(peer, *given)
    if verb == "tasks":
        sessions = min(given[1], _MANY)
        await _open(peer, sessions, warm=sessions)
        return await _tasks(peer, *given)
    if verb == "offered":
        await _open(peer, _MANY, warm=_MANY)
        return await _offered(peer, *given)
    await _open(peer, _ONE, warm=_WARM)
    return await (_single if verb == "single" else _paced)(peer, *given)


async def _open(peer: Peer, sessions: int, *, warm: int) -> None:
    """Connect, and prepare the statements of all sessions."""
    await peer.open(sessions)
    await asyncio.gather(*(peer.push(UNCOUNTED) for _ in range(min(warm, sessions))))
    for _ in range(warm - sessions):
        await peer.push(UNCOUNTED)


async def _single(peer: Peer, jobs: int) -> dict[str, Any]:
    took_ns: list[int] = []
    began, used_s = time.perf_counter(), time.process_time()
    for number in range(jobs):
        at = time.perf_counter_ns()
        await peer.push(number)
        took_ns.append(time.perf_counter_ns() - at)
    return {
        "seconds": time.perf_counter() - began,
        "cpu_s": time.process_time() - used_s,
        "took_ns": took_ns,
    }


async def _tasks(peer: Peer, jobs: int, tasks: int) -> dict[str, Any]:
    numbers = iter(range(jobs))

    async def push() -> None:
        for number in numbers:
            await peer.push(number)

    began = time.perf_counter()
    await asyncio.gather(*(push() for _ in range(tasks)))
    return {"seconds": time.perf_counter() - began}


async def _bulk(peer: Peer, jobs: int, call: int) -> dict[str, Any]:
    """The time includes creating the jobs, as a caller has to create them too."""
    began_ns, began, used_s = time.time_ns(), time.perf_counter(), time.process_time()
    for first in range(0, jobs, call):
        await peer.push_many(range(first, min(jobs, first + call)))
    return {
        "seconds": time.perf_counter() - began,
        "cpu_s": time.process_time() - used_s,
        "began_ns": began_ns,
    }


async def _flow(push: Callable[[int], Awaitable[int]], steps: int, verb: str) -> dict[str, Any]:
    pushed = 0
    if verb == "fan":
        # The first calls take longer: this workflow finishes before the measurement starts.
        pushed = await push(_WARM_STEPS)
        await asyncio.sleep(1.0)
    began_ns = time.time_ns()
    return {"began_ns": began_ns, "pushed": pushed + await push(steps)}


async def _paced(peer: Peer, jobs: int, seconds: float) -> dict[str, Any]:
    called: list[int] = []
    returned: list[int] = []
    for number in range(jobs):
        await asyncio.sleep(seconds)
        called.append(time.time_ns())
        await peer.push(number)
        returned.append(time.time_ns())
    return {"called_ns": called, "returned_ns": returned, "pushed": _WARM + jobs}


async def _offered(peer: Peer, jobs: int, rate: float) -> dict[str, Any]:
    due, called, returned = [[0] * jobs for _ in range(3)]

    async def send(number: int) -> None:
        called[number] = time.time_ns()
        await peer.push(number)
        returned[number] = time.time_ns()

    first = time.time_ns() + 100_000_000
    sends: list[asyncio.Task[None]] = []
    for number in range(jobs):
        due[number] = first + int(1e9 * number / rate)
        # Even a sleep of zero lets the started pushes continue.
        await asyncio.sleep(max(0, due[number] - time.time_ns()) / 1e9)
        sends.append(asyncio.create_task(send(number)))
    await asyncio.gather(*sends)
    pushed = _MANY + jobs
    return {"due_ns": due, "called_ns": called, "returned_ns": returned, "pushed": pushed}


async def main(peer: Peer, verb: str, *numbers: str) -> None:
    if verb == "work":
        loop = asyncio.get_running_loop()
        loop.add_reader(sys.stdin.fileno(), peer.stop)
    print(f"\n{json.dumps(await run(peer, verb, numbers))}", flush=True)
    if not peer.orderly:
        # Some libraries keep threads that prevent the exit of the process.
        os._exit(0)


def _stop_at_end_of_input(peer: Peer) -> None:
    sys.stdin.read()
    peer.stop()


def start(queue: str, settings: str, verb: str, *numbers: str) -> None:
    """Run one role until it is complete."""
    roles = import_module(f"benchmarks.peers.{queue}_roles")
    peer: Peer = roles.Roles(os.environ["CHANCY_BENCH_DSN"], json.loads(settings))
    if verb == "work" and peer.own_loop:
        threading.Thread(target=_stop_at_end_of_input, args=(peer,), daemon=True).start()
        peer.work_sync()
    else:
        asyncio.run(main(peer, verb, *numbers))


if __name__ == "__main__":
    start(*sys.argv[1:])
