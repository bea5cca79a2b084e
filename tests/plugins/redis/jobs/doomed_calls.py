"""What processes do with a queue in Redis: those that are to die, and those before and after."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress

from chancy import Chancy, State, Unique, Worker
from chancy.attempt.judge import judge
from chancy.attempt.outcome import SetAside
from chancy.attempt.settlement import Note, Settlement
from chancy.broker.values import JobFilter
from chancy.errors import DuplicateJob
from chancy.plugins.redis.compat.fennel.calls import purge_jobs
from chancy.plugins.redis.maintenance.upkeep import Upkeep
from chancy.plugins.redis.transport.shard import linked
from chancy.queue.queue import Queue
from chancy.testing.conformance.bench import record
from tests.plugins.redis.jobs.errands import QUEUE
from tests.plugins.redis.jobs.scene import (
    DELAYS_S,
    HEARTBEAT_S,
    NUMBERS,
    TIMEOUT_S,
    Scene,
    finished,
    go_on,
    looking,
    redis_of,
)
from tests.support.waiting import eventually

Deed = Callable[[Scene, Chancy], Awaitable[object]]
ALL = len(NUMBERS)
HOUR_S = 3_600.0
#: The counter of jobs that wait, and what a hand writes into it.
PENDING, WRONG = f"p:{QUEUE.name}", 7


async def nothing(scene: Scene, chancy: Chancy) -> None:
    pass


# What a healthy process has done before


async def pushed(scene: Scene, chancy: Chancy) -> None:
    await chancy.push_many(scene.job(number, DELAYS_S.get(number)) for number in NUMBERS)


async def pushed_for_later(scene: Scene, chancy: Chancy) -> None:
    await chancy.push_many(scene.job(number, HOUR_S) for number in NUMBERS)


async def pushed_within(scene: Scene, chancy: Chancy) -> None:
    async with chancy.transaction() as tx:
        await chancy.push_many([scene.job(number) for number in NUMBERS], within=tx)


async def orphaned(scene: Scene, chancy: Chancy) -> None:
    """A worker has left two jobs behind."""
    await pushed(scene, chancy)
    redis, worker = await redis_of(chancy), record()
    await redis.register(worker)
    assert len(await redis.claim(QUEUE.name, worker_id=worker.id, limit=2)) == 2
    await redis.unregister(worker.id)


async def set_aside(scene: Scene, chancy: Chancy) -> None:
    """A worker that did not know the function has claimed two of the jobs."""
    await pushed(scene, chancy)
    redis, worker = await redis_of(chancy), record()
    await redis.register(worker)
    claims = await redis.claim(QUEUE.name, worker_id=worker.id, limit=2)
    assert len(claims) == 2
    await redis.settle([judge(claim, SetAside("it is unknown")) for claim in claims])
    await redis.unregister(worker.id)


async def taken(scene: Scene, chancy: Chancy) -> None:
    """A worker that beats no more has claimed one of the jobs that wait for later."""
    await pushed_for_later(scene, chancy)
    redis, worker = await redis_of(chancy), record()
    assert await redis.run_now([scene.id(0)])
    await redis.register(worker)
    assert len(await redis.claim(QUEUE.name, worker_id=worker.id, limit=1)) == 1


async def miscounted(scene: Scene, chancy: Chancy) -> None:
    await pushed(scene, chancy)
    with looking(scene) as look:
        look.set_counter(PENDING, WRONG)


async def unreadable(scene: Scene, chancy: Chancy) -> None:
    """Workers of an earlier release have set aside the scheduled jobs."""
    await pushed(scene, chancy)
    with looking(scene) as look:
        for number in DELAYS_S:
            look.set_aside(scene.id(number))


async def ran(scene: Scene, chancy: Chancy) -> None:
    await pushed(scene, chancy)
    with looking(scene) as look:
        await go_on(scene, chancy, look)


async def failed(scene: Scene, chancy: Chancy) -> None:
    await chancy.push_many(scene.job(10 * number) for number in NUMBERS)
    with looking(scene) as look:
        await go_on(scene, chancy, look)


async def held(scene: Scene, chancy: Chancy) -> None:
    """The key is held that the last job of `refused` has."""
    await chancy.push(scene.job(1, HOUR_S).with_unique(Unique(key="held", scope="global")))


async def beside_another(scene: Scene, chancy: Chancy) -> None:
    await pushed(scene, chancy)
    for queue in (Queue(name="old"), *chancy.queues):
        await chancy.declare(queue)


# What the process does that dies


async def work(scene: Scene, chancy: Chancy) -> None:
    """Serve the queue until all is done, and leave."""
    with looking(scene) as look:
        async with Worker(chancy, heartbeat_s=HEARTBEAT_S, heartbeat_timeout_s=TIMEOUT_S):
            await eventually(lambda: finished(scene, chancy, look))


async def push_one(scene: Scene, chancy: Chancy) -> None:
    await chancy.push(scene.job(1))


async def push_plain(scene: Scene, chancy: Chancy) -> None:
    await chancy.push_many(scene.job(number) for number in NUMBERS)


#: One more than are kept line by line.
NOTES = 33
#: Of the script before the one that takes back, and of the next one, which is refused.
FIRST, REST = 64, 6
REFUSED = range(11, 11 + FIRST + REST)


async def refused(scene: Scene, chancy: Chancy) -> None:
    """Push jobs of which the last one is refused when others are stored."""
    keys = {REFUSED[-1]: "held"}
    with suppress(DuplicateJob):
        await chancy.push_many(
            scene.job(number).with_unique(
                Unique(key=keys.get(number, str(number)), scope="global", on_conflict="raise")
            )
            for number in REFUSED
        )
        raise AssertionError("it is refused")


def rest_of(numbers: Collection[int]) -> Mapping[str, int]:
    """What keys have of jobs that have ended."""
    dead = sum(number % 10 == 0 for number in numbers)
    all_of_them = len(numbers)
    return {"ids": all_of_them, "j": all_of_them, "dead": dead, "done": all_of_them - dead}


async def refused_again(scene: Scene, chancy: Chancy) -> None:
    await refused(scene, chancy)
    assert await chancy.run_now(scene.id(1)) == {scene.id(1)}


async def cancel(scene: Scene, chancy: Chancy) -> None:
    await chancy.cancel(*map(scene.id, NUMBERS))


async def run_now(scene: Scene, chancy: Chancy) -> None:
    await chancy.run_now(*map(scene.id, NUMBERS))


async def expect(scene: Scene, chancy: Chancy) -> None:
    """Wait for jobs, and give it up."""
    redis, ids = await redis_of(chancy), list(map(scene.id, NUMBERS))
    await redis.watch(ids)
    await redis.unwatch(ids)


async def note(scene: Scene, chancy: Chancy) -> None:
    """Claim a job, and note more of it than is kept line by line."""
    redis, worker = await redis_of(chancy), record()
    await redis.register(worker)
    [claim] = await redis.claim(QUEUE.name, worker_id=worker.id, limit=1)
    for said in range(NOTES):
        await redis.update_meta([Note(claim.id, claim.lease, f'{{"said": {said}}}')])
    await redis.settle([Settlement(claim.id, claim.lease, State.PENDING, refund=True)])
    await redis.unregister(worker.id)


async def look_around(scene: Scene, chancy: Chancy) -> None:
    """Ask for all there is to know."""
    redis, first = await redis_of(chancy), scene.id(NUMBERS[0])
    await redis.get([first])
    await redis.position(first)
    await redis.find(JobFilter())
    await redis.counts()
    await redis.queues()
    await redis.workers()
    await redis.stop_requests(first)
    await redis.client.run("listed", QUEUE.name, 10)
    await redis.next_s(QUEUE.name)


async def keep_up(scene: Scene, chancy: Chancy) -> None:
    """What a worker does twice a minute."""
    async with linked(scene.settings) as link:
        await Upkeep(link).turn()


async def keep_up_again(scene: Scene, chancy: Chancy) -> None:
    """The same when it is somebody's turn again."""
    with looking(scene) as look:
        look.delete("upkeep")
    await keep_up(scene, chancy)


async def forget_all(scene: Scene, chancy: Chancy) -> None:
    """The same where what has succeeded is kept for no time."""
    with looking(scene) as look:
        look.delete("upkeep")
    async with linked(scene.settings.model_copy(update={"keep_finished_s": 0.001})) as link:
        await Upkeep(link).turn()


async def purge_all(scene: Scene, chancy: Chancy) -> None:
    ids = [scene.id(10 * number) for number in NUMBERS]
    await purge_jobs(scene.settings, chancy.control, ids)


async def pause(scene: Scene, chancy: Chancy) -> None:
    assert await chancy.pause_queue(QUEUE.name)
    with looking(scene) as look:
        assert look("paused") == 1


async def pause_and_resume(scene: Scene, chancy: Chancy) -> None:
    await pause(scene, chancy)
    assert await chancy.resume_queue(QUEUE.name)


async def delete_another(scene: Scene, chancy: Chancy) -> None:
    await (await redis_of(chancy)).delete_queue("old")
