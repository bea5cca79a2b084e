"""Processors of the mode process: their children import this module."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from pathlib import Path

from chancy.plugins.redis.settings import RedisSettings
from chancy.plugins.redis.streams.model.policy import Ignore
from chancy.plugins.redis.streams.model.record import Record
from chancy.plugins.redis.streams.processing.blocking_events import BlockingEvents
from chancy.plugins.redis.streams.streams import Streams
from tests.plugins.redis.streams.fleet import in_turn
from tests.support.waiting import eventually_sync

#: The URL of the server, for the worker and its child processes.
URL = os.environ.get("CHANCY_TEST_STREAMS_URL", "redis://127.0.0.1:1/0")
CLUSTER = os.environ.get("CHANCY_TEST_STREAMS_CLUSTER") == "yes"
#: Sleeps for some microseconds, in which no other thread of the process runs, as in a computation.
_hold = ctypes.PyDLL(None).usleep
streams = Streams(RedisSettings(url=URL, cluster=CLUSTER, prefix="t:"))


class OnlyHere(Exception):
    """An error that no other process can unpickle, like one of a program's main module."""

    def __reduce__(self) -> tuple[Callable[[int], OnlyHere], tuple[int]]:
        return _of, (os.getpid(),)


def _of(pid: int) -> OnlyHere:
    if pid != os.getpid():
        raise ModuleNotFoundError("No module named '__mp_main__'")
    return OnlyHere()


class Sum(Record):
    key: int
    seq: int
    action: str = ""


sums = streams.stream("sums", record=Sum, partition_by="key", partitions=2, hasher=in_turn)


@streams.processor(
    sums, mode="process", join_delay_s=0, lease_s=4.0, policy=Ignore(keep=True), grace_s=30
)
def compute(events: BlockingEvents[Sum]) -> None:
    for one in events.records():
        match one.action:
            case "raise":
                raise ValueError(f"sum {one.seq}")
            case "raise here only":
                raise OnlyHere(f"sum {one.seq}")
            case "die":
                os._exit(3)
            case "slow":
                _note(events.partition, one)  # its start
                eventually_sync(Path(f"{os.environ['CHANCY_TEST_STREAMS_NOTES']}.go_on").exists)
            case "burn":
                until = time.monotonic() + 4.2  # longer than the lease
                while time.monotonic() < until:
                    _hold(2_000)
            case "burn on":
                while True:
                    _hold(2_000)
            case _:
                pass
        _note(events.partition, one)


@streams.processor(sums, mode="process", name="batches", join_delay_s=0)
def compute_batches(events: BlockingEvents[Sum]) -> None:
    for batch in events.records().take(5, within=0.05):
        for one in batch:
            _note(f"batches.{events.partition}", one)


def _note(where: object, one: Sum) -> None:
    with open(f"{os.environ['CHANCY_TEST_STREAMS_NOTES']}.{where}", "a") as notes:
        notes.write(f"{os.getpid()} {one.seq}\n")
