"""Workflows beside plain jobs: how fast a chain advances, and what a fan-out and fan-in costs.

Run it by ``python -m benchmarks.workflows [--quick] [DSN]``.

Without a DSN a server is started for it, with fsync on. One worker process, with default settings,
runs all of it. In each of the rounds both kinds take their turns, so that a noisy machine disturbs
both; only the ratios count, and they are of medians. A chain is compared with the time from the
call of a push to the claim of its job in an idle worker, by the clocks of one machine. A fan of
10,000 steps between two is compared with 10,000 plain jobs: from the call of the push until all is
settled.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from chancy import Chancy, Queue, Worker, job
from chancy.embedded import PostgresServer
from chancy.plugins.workflow import Workflow, Workflows, chain

ROUNDS, QUICK_ROUNDS = 5, 1
STEPS, QUICK_STEPS = 1_000, 100
WIDTH, QUICK_WIDTH = 10_000, 1_000
PUSHES = 100
#: What the project wants at most.
CHAIN_BAR, FAN_BAR = 3.0, 1.5

FLOWS = Workflows()


@job(queue="flows")
async def step(number: int) -> int:
    return number


def application(dsn: str) -> Chancy:
    return Chancy(dsn, queues=[Queue(name="flows", executor="async")], plugins=[FLOWS])


async def latency_ms(app: Chancy) -> float:
    """From the call of a push to the claim of its job, the median."""
    found: list[float] = []
    for number in range(PUSHES):
        called = time.time()
        done = await (await app.push(step.job(number))).wait(30)
        assert done.claimed_at is not None
        found.append((done.claimed_at.timestamp() - called) * 1e3)
        await asyncio.sleep(0.02)
    return statistics.median(found)


async def chain_ms(app: Chancy, steps: int) -> float:
    """Milliseconds from one step of a chain to the next."""
    reference = await FLOWS.push(app, chain("chain", *[step.job(n) for n in range(steps)]))
    began = time.perf_counter()
    await reference.wait(120)
    return (time.perf_counter() - began) / steps * 1e3


async def plain_s(app: Chancy, jobs: int) -> float:
    """Seconds for plain jobs."""
    began = time.perf_counter()
    references = await app.push_many(step.job(number) for number in range(jobs))
    await references[-1].wait(120)
    while any(sum(counts) for counts in (await app.counts()).values()):  # noqa: ASYNC110
        await asyncio.sleep(0.002)
    return time.perf_counter() - began


async def fan_s(app: Chancy, width: int) -> float:
    """Seconds for a workflow of as many steps between two."""
    flow = Workflow("fan").add(step.job(0), "out")
    for number in range(width):
        flow.add(step.job(number), f"step {number}", after="out")
    flow.add(step.job(0), "in", after=[f"step {number}" for number in range(width)])
    began = time.perf_counter()
    reference = await FLOWS.push(app, flow)
    await reference.wait(120)
    return time.perf_counter() - began


@asynccontextmanager
async def worker(dsn: str) -> AsyncGenerator[None]:
    command = (sys.executable, "-m", "benchmarks.workflows", "--worker", dsn)
    process = await asyncio.create_subprocess_exec(*command)
    try:
        yield
    finally:
        process.terminate()
        await process.wait()


async def measure(dsn: str, *, quick: bool) -> None:
    rounds = QUICK_ROUNDS if quick else ROUNDS
    steps, width = (QUICK_STEPS, QUICK_WIDTH) if quick else (STEPS, WIDTH)
    starts, chains, plains, fans = list[float](), list[float](), list[float](), list[float]()
    async with application(dsn) as app, worker(dsn):
        await (await app.push(step.job(0))).wait(60)
        for _ in range(rounds):
            starts.append(await latency_ms(app))
            chains.append(await chain_ms(app, steps))
            plains.append(await plain_s(app, width))
            fans.append(await fan_s(app, width))
    report("push to start", starts, "ms")
    report(f"a step of a chain of {steps:,}", chains, "ms", over=starts, bar=CHAIN_BAR)
    report(f"{width:,} plain jobs", plains, "s")
    report(f"{width:,} steps between two", fans, "s", over=plains, bar=FAN_BAR)


def report(
    what: str, found: list[float], unit: str, *, over: list[float] | None = None, bar: float = 0.0
) -> None:
    middle = statistics.median(found)
    line = f"{what:28} {middle:8.2f} {unit:3} ({min(found):.2f} to {max(found):.2f})"
    if over is not None:
        line += f"  x {middle / statistics.median(over):.2f}, at most {bar:g} is wanted"
    print(line)


async def work(dsn: str) -> None:
    async with application(dsn) as app, Worker(app) as running:
        await running.wait_for_shutdown()


def main(arguments: list[str]) -> None:
    if arguments[:1] == ["--worker"]:
        # The jobs are those of the module by its name, not of the script that was started.
        from benchmarks import workflows

        asyncio.run(workflows.work(arguments[1]))
        return
    from benchmarks import workflows

    quick = "--quick" in arguments
    given = [one for one in arguments if not one.startswith("--")]
    if given:
        workflows.application(given[0]).sync_migrate()
        asyncio.run(workflows.measure(given[0], quick=quick))
        return
    with PostgresServer(settings={"fsync": "on", "shared_buffers": "1GB"}) as server:
        workflows.application(server.dsn()).sync_migrate()
        asyncio.run(workflows.measure(server.dsn(), quick=quick))


if __name__ == "__main__":
    main(sys.argv[1:])
