"""Functions of jobs that reach for the task or the process they run in."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import itertools
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any, NoReturn

from tests.contract.executor.jobs import exists, wait_until, write

if TYPE_CHECKING:
    import asyncio
else:
    from tests.support.late import asyncio

#: Tasks that jobs leave behind.
LEFT: list[asyncio.Task[None]] = []


async def leave_helper(started: str, until: str) -> str:
    """End before the thread that was to do the work."""
    helper = asyncio.create_task(asyncio.to_thread(_wait, started, until))
    while not exists(started):
        await asyncio.sleep(0.002)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(helper, 0.05)
    return "ended"


def _wait(started: str, until: str) -> None:
    write(started, str(os.getpid()))
    wait_until(until)


async def hand_over(values: list[int]) -> list[object]:
    """Have threads do the work."""
    kept = await asyncio.gather(*(asyncio.to_thread(abs, value) for value in values))
    try:
        await asyncio.to_thread(divmod, 1, 0)
    except ZeroDivisionError as error:
        return [kept, type(error).__name__]
    return [kept]


async def leave_stubborn_task(until: str) -> str:
    """End before a task that heeds no cancel."""

    async def stubborn() -> None:
        while not exists(until):
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.002)  # what it is cancelled in; a file tells of the end

    LEFT.append(asyncio.create_task(stubborn()))
    return "ended"


def exit_at_once(status: int) -> NoReturn:
    os._exit(status)


def segfault() -> None:
    ctypes.string_at(0)


def kill_itself(signum: int) -> None:
    os.kill(os.getpid(), signum)
    time.sleep(60)


def survive(signum: int) -> str:
    os.kill(os.getpid(), signum)
    return "survived"


def default_handlers_below() -> Any:
    """What a program that the job starts does on the signals."""
    program = (
        "import json, signal; print(json.dumps([signal.getsignal(signal.SIGINT) is "
        "signal.default_int_handler, signal.getsignal(signal.SIGTERM) == signal.SIG_DFL, "
        "list(signal.pthread_sigmask(signal.SIG_BLOCK, []))]))"
    )
    return json.loads(subprocess.check_output([sys.executable, "-S", "-c", program]))


def fork_and_die(copy: str) -> None:
    """Leave a copy of the process behind, which holds all its descriptors."""
    if os.fork() == 0:
        write(copy, str(os.getpid()))
        time.sleep(60)
        os._exit(0)
    wait_until(copy)
    os.kill(os.getpid(), signal.SIGKILL)


def fork_and_return() -> str:
    copy = os.fork()
    if copy:
        os.waitpid(copy, 0)
        return "the original"
    return "the copy"


async def fork_and_return_async(later: bool) -> str:
    if later:
        await asyncio.sleep(0)
    return fork_and_return()


def _line(kind: int = socket.SOCK_STREAM) -> int:
    """The descriptor of the line to the parent, or of the channel that calls come by."""
    for fd in range(3, 64):
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(os.fstat(fd).st_mode):
                with socket.socket(fileno=os.dup(fd)) as found:
                    if found.family == socket.AF_UNIX and found.type == kind:
                        return fd
    raise AssertionError("there is no line")


def close_line() -> None:
    os.close(_line())


def close_channel() -> None:
    os.close(_line(socket.SOCK_SEQPACKET))


def write_to_channel() -> None:
    """Fill it, in the wrong direction."""
    fd = _line(socket.SOCK_SEQPACKET)
    with contextlib.suppress(BlockingIOError), socket.socket(fileno=os.dup(fd)) as channel:
        while channel.send(b"Hello! " * 10, socket.MSG_DONTWAIT):
            pass


def become_another_program() -> NoReturn:
    os.execv("/bin/sleep", ["sleep", "60"])


def garble_line() -> None:
    os.write(_line(), b"Hello! " * 10)
    time.sleep(60)


def mark_at_exit(path: str) -> None:
    atexit.register(write, path)


def hold_the_interpreter(started: str) -> None:
    write(started, str(os.getpid()))
    re.match(r"(a+)+$", "a" * 60 + "b")


def hold_the_interpreter_for_good(started: str) -> None:
    """Where no signal is looked at."""
    write(started, str(os.getpid()))
    sum(itertools.repeat(1))


async def same_task() -> bool:
    first = asyncio.current_task()
    await asyncio.sleep(0)
    second = asyncio.current_task()
    await asyncio.sleep(0.001)
    return first is not None and first is second is asyncio.current_task()


async def timeout_of_its_own() -> str:
    try:
        async with asyncio.timeout(0.01):
            await asyncio.sleep(60)
    except TimeoutError:
        await asyncio.sleep(0)
        return "timed out"
    return "waited"


async def failing_group() -> str:
    async def fail() -> None:
        await asyncio.sleep(0)
        raise ValueError("in the group")

    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(fail())
            await asyncio.sleep(60)
    except* ValueError:
        pass
    return "caught"


async def cancel_itself(wait: bool) -> str:
    task = asyncio.current_task()
    assert task is not None
    task.cancel("by itself")
    if wait:
        await asyncio.sleep(60)
    return "did not wait"


async def use_its_task_later(how: str, ended: str) -> str:
    """Does not wait, so that its task could run the next job."""
    task = asyncio.current_task()
    assert task is not None
    match how:
        case "cancel":
            asyncio.get_running_loop().call_soon(task.cancel)
        case "uncancel":
            task.cancel()
            task.uncancel()
        case _:
            task.add_done_callback(lambda _: write(ended, "ended"))
    return how
