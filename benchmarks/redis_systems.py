"""The systems measured on one Redis server: chancy's Redis queues and other job queues."""

from __future__ import annotations

from dataclasses import dataclass
from typing import LiteralString

from benchmarks.systems import System


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisSystem(System):
    """A job queue with its jobs in Redis.

    :param left: commands whose replies, numbers or mappings with ``pending``, are all 0 when every
        job is finished. Only valid once all jobs have run.
    """

    unfinished: LiteralString = ""
    left: tuple[str, ...]


CHANCY = RedisSystem(
    name="chancy",
    label="chancy",
    program="own",
    roles="chancy_redis",
    history="kept",
    left=("HLEN {chancy:jobs:0}:n",),
)
FENNEL = RedisSystem(
    name="fennel",
    label="fennel",
    settings={"concurrency": 32, "prefetch": 10},
    history="kept",
    left=("XLEN __fennel:queue:bench",),
    bulk="no bulk call: 50 pushes at a time",
    python=(3, 8),
    before=(3, 9),
)
ARQ = RedisSystem(
    name="arq",
    label="arq",
    settings={"max_jobs": 1_000, "poll": 0.01},
    history="kept",
    left=("ZCARD arq:queue",),
    bulk="no bulk call: 50 pushes at a time",
)
TASKIQ = RedisSystem(
    name="taskiq",
    label="taskiq, stream",
    settings={"max_async_tasks": 100},
    history="not kept",
    left=("XPENDING taskiq taskiq",),
    bulk="no bulk call: 50 pushes at a time",
)
DRAMATIQ = RedisSystem(
    name="dramatiq",
    label="dramatiq",
    settings={"threads": 32},
    history="not kept",
    left=("HLEN dramatiq:default.msgs",),
    bulk="no bulk call: one after the other",
)
SAQ = RedisSystem(
    name="saq@redis",
    label="saq",
    roles="saq",
    settings={"concurrency": 100},
    history="kept",
    left=("ZCARD saq:default:incomplete",),
    bulk="no bulk call: 50 pushes at a time",
)
CELERY = RedisSystem(
    name="celery",
    label="celery",
    settings={"pool": "solo", "prefetch": 100},
    history="not kept",
    left=("LLEN celery", "HLEN unacked"),
    bulk="no bulk call: one after the other, by one connection",
)
#: Not a queue: measured by `benchmarks.streams`.
RUNNEL = System(
    name="runnel",
    label="",
    settings={"prefetch": 100},
    history="log",
    unfinished="",
    python=(3, 8),
    before=(3, 9),
)
OTHERS = (FENNEL, ARQ, TASKIQ, DRAMATIQ, SAQ, CELERY)
ALL = (CHANCY, *OTHERS)
