"""The program of a worker process: ``python -m tests.faults.run_worker '{"dsn": …}'``.

Prints ``ready`` and the id of the worker once it serves, and a `Report` at the end.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import sys
from collections import Counter
from dataclasses import replace

from chancy import Chancy, Plugin, Queue, Worker
from chancy.attempt.claim import Claim
from chancy.attempt.outcome import Outcome
from chancy.attempt.settlement import Settlement
from chancy.plugins.cron import Cron, Entry
from chancy.plugins.dashboard import DashboardPlugin
from chancy.plugins.dead_letter import DeadLetters
from chancy.plugins.leadership import Leadership
from chancy.plugins.limits import GlobalLimits
from chancy.plugins.metrics import Metrics
from chancy.plugins.pruner import Pruner
from chancy.plugins.recovery import Recovery
from chancy.plugins.retry import Retries
from chancy.postgres.broker import PostgresBroker
from chancy.postgres.schema import status
from chancy.postgres.schema.component import CORE, HEAD, Component
from chancy.queue.executor_kind import decode_options
from chancy.queue.rules import decode_rules
from chancy.retry import Constant, Jitter
from tests.faults import jobs, outbursts, payments
from tests.faults.worker_process import WorkerSettings

# Importing these modules registers their jobs.
JOBS = (jobs, outbursts, payments)


class Tally(Plugin):
    """Counts outcomes by their kind."""

    def __init__(self) -> None:
        self.outcomes = Counter[str]()

    def judging(self, claim: Claim, outcome: Outcome, decision: Settlement) -> Settlement:
        self.outcomes[type(outcome).__name__] += 1
        return decision


def application(settings: WorkerSettings, tally: Tally) -> Chancy:
    """The application of a worker process."""
    return Chancy(
        settings.dsn,
        listen_dsn=settings.listen_dsn,
        driver=settings.driver,
        queues=[
            Queue(
                name=settings.queue,
                executor=settings.executor,
                concurrency=settings.concurrency,
                options=decode_options(settings.options, settings.executor),
                rules=decode_rules(settings.rules),
            )
        ],
        plugins=[*plugins(settings), tally],
        no_default_plugins=True,
    )


def plugins(settings: WorkerSettings) -> list[Plugin]:
    """The plugins for these settings."""
    made: list[Plugin] = [
        Recovery(sweep_s=settings.sweep_s),
        Retries(Constant(settings.retry_base_s, jitter=Jitter.EQUAL)),
    ]
    if settings.lease_s:
        made.append(Leadership(lease_s=settings.lease_s))
    if settings.entries:
        entries = [
            Entry(f"e{number}", "* * * * * *", jobs.tick.job(), misfire="all", backfill_limit=1000)
            for number in range(settings.entries)
        ]
        made.append(Cron(*entries, poll_s=0.2, keep_ticks=10_000))
    if settings.everything:
        made += [Metrics(), DashboardPlugin(), Pruner()]
    if settings.rules or settings.everything:
        made.append(GlobalLimits(every_s=0.2))
    if settings.dead_letters or settings.everything:
        made.append(DeadLetters(sweep_s=0.5))
    return made


async def run(settings: WorkerSettings) -> None:
    """Run the worker until a signal arrives."""
    tally = Tally()
    if settings.release > 1:
        importlib.import_module("tests.faults.novel")
    if settings.head != HEAD:
        next_core = Component(replace(CORE.migrations, head=settings.head))
        setattr(status, "CORE", next_core)  # noqa: B010  mypy: not exported
    chancy = application(settings, tally)
    async with chancy:
        worker = Worker(
            chancy,
            queues=[settings.queue],
            shutdown_timeout_s=settings.shutdown_timeout_s,
            heartbeat_s=settings.heartbeat_s,
            heartbeat_timeout_s=settings.heartbeat_timeout_s,
        )
        async with worker:
            worker.catch_signals()
            say(f"ready {worker.worker_id}")
            await worker.wait_for_shutdown()
        broker = chancy.broker
        assert isinstance(broker, PostgresBroker)
        report = {
            "settled": worker.settled,
            "stale": worker.stale,
            "sessions": broker._claiming.generation,
            "outcomes": tally.outcomes,
        }
    say(json.dumps(report))


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    asyncio.run(run(WorkerSettings(**json.loads(sys.argv[1]))))
