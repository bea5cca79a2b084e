"""Explanations of why a job waits, from plugins and from the tables."""

from __future__ import annotations

import uuid

from chancy import Chancy, Plugin, Queue
from chancy.app.diagnosis import Why
from chancy.broker.values import WorkerRecord
from chancy.job.definition import Job, QueuedJob
from chancy.plugin.runtime import Application
from chancy.states import State
from tests.support.sql import ask


class PerUser(Plugin):
    """Holds jobs beyond two of each user, say: one reads who has the slots from the tables."""

    async def why_held(self, app: Application, job: QueuedJob) -> str | None:
        user = job.meta.get("user")
        if user is None:
            return None
        queues = {queue.name for queue in await app.broker.queues()}
        return f"user {user} has 2 running jobs, the most of the queue {job.queue in queues}"


async def test_a_plugin_explains_why_it_holds_a_job(dsn: str) -> None:
    async with Chancy(dsn, plugins=[PerUser()], queues=[Queue(name="mail")]) as chancy:
        await chancy.declare(Queue(name="mail"))
        job = Job(func="shop.send", queue="mail")
        one, other = [
            await chancy.push(each, validate=False) for each in (job.with_meta(user=7), job)
        ]
        ask(dsn, "update chancy.jobs set state = %s", [State.HELD.value])
        [unserved, reason] = await chancy.why(one.id)
        assert unserved.why is Why.NO_WORKERS
        assert reason == (Why.HELD, "user 7 has 2 running jobs, the most of the queue True")
        [_, reason] = await chancy.why(other.id)
        assert reason.why is Why.HELD
        assert "a plugin holds the job" in reason.text


async def test_slot_holders_of_a_queue_are_named(dsn: str) -> None:
    async with Chancy(dsn, plugins=[]) as chancy:
        await chancy.declare(Queue(name="mail", executor="async", concurrency=6))
        worker = uuid.uuid4()
        await chancy.broker.register(
            WorkerRecord(
                id=worker, host="here", pid=7, tags=frozenset({"*"}), queues=("mail",), version="1"
            )
        )
        job = Job(func="shop.send", queue="mail")
        running = [reference.id for reference in await chancy.push_many([job] * 6, validate=False)]
        for at in range(6):  # the first has run for longest
            assert await chancy.broker.claim("mail", worker_id=worker, limit=1, thorough=True), at
        late = await chancy.push(job, validate=False)

        busy = (await chancy.why(late.id))[0]
        assert busy.why is Why.BUSY
        assert "served by 1 worker, up to 6 each, running 6 of its jobs: the longest 5" in busy.text
        assert [str(id) in busy.text for id in running] == [True] * 5 + [False]
        assert busy.text.count(f"s in worker {worker} (here, process 7)") == 5
