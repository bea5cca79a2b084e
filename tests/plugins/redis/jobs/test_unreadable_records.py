"""Records that cannot be read, or were deleted by hand, beside others; counters that differ."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import get_args
from uuid import UUID

import pytest

from chancy import GlobalConcurrency, Queue
from chancy.broker.values import JobFilter
from chancy.job.unique import OnConflict, UniqueKey
from chancy.plugins.redis import RedisBroker, records
from chancy.plugins.redis.maintenance.doctor import examine
from chancy.plugins.redis.maintenance.upkeep import Upkeep
from chancy.plugins.redis.records import VERSION
from chancy.states import State
from chancy.testing.conformance.bench import Bench, prepared, settlement
from chancy.testing.conformance.bench import record as worker_record
from tests.support.waiting import eventually

#: Records in place of valid ones: of a wrong type, of any bytes, cut off, of a later version.
DAMAGES = ("hash", "empty", "garbage", "cut", "longer", "later")


def key_of(broker: RedisBroker, id: UUID) -> bytes:
    return f"{broker.tag}:j:".encode() + id.bytes


async def record_of(broker: RedisBroker, id: UUID) -> bytes:
    found: bytes = await broker.client.command("GET", key_of(broker, id))
    return found


async def write(broker: RedisBroker, id: UUID, record: bytes) -> None:
    await broker.client.command("SET", key_of(broker, id), record)


async def damage(broker: RedisBroker, id: UUID, how: str) -> None:
    record = await record_of(broker, id)
    if how == "hash":
        await broker.client.command("DEL", key_of(broker, id))
        await broker.client.command("HSET", key_of(broker, id), "a", "b")
        return
    changed = {
        "empty": b"",
        "garbage": b"not a record",
        "cut": record[:-1],
        "longer": record + b"x",
        "later": bytes([VERSION + 1]) + record[1:],
    }
    await write(broker, id, changed[how])


async def set_aside(broker: RedisBroker) -> Sequence[UUID]:
    ids = await broker.client.command("ZRANGE", f"{broker.tag}:unreadable", 0, -1)
    return [UUID(bytes=id) for id in ids]


async def all_promoted(broker: RedisBroker) -> None:
    """Promote until no scheduled job is left."""

    async def promoted() -> bool:
        return (await broker.promote(10)).next_due_s is None

    await eventually(promoted)


async def turn(broker: RedisBroker) -> None:
    await broker.client.command("DEL", f"{broker.tag}:upkeep")
    await Upkeep(broker.client).turn()


@pytest.mark.parametrize("how", DAMAGES)
@pytest.mark.parametrize("orphaned", [False, True], ids=["claimed", "orphaned"])
async def test_jobs_beside_an_unreadable_record_are_found(
    bench: Bench, broker: RedisBroker, how: str, orphaned: bool
) -> None:
    first, bad, last = prepared(), prepared(), prepared()
    await (bench.running if orphaned else bench.push)(first, bad, last)
    await damage(broker, bad.id, how)
    if orphaned:
        found = await broker.orphans(heartbeat_age_s=0.0, limit=10)
    else:
        found = await bench.claim(10)
    assert {claim.id for claim in found} == {first.id, last.id}
    assert await set_aside(broker) == [bad.id]


@pytest.mark.parametrize("how", DAMAGES)
async def test_other_calls_leave_out_an_unreadable_record(
    bench: Bench, broker: RedisBroker, how: str
) -> None:
    due, bad_due = prepared(delay_s=0.001), prepared(delay_s=0.001)
    running, bad_running = await bench.running(prepared(), prepared())
    waiting, bad_waiting = prepared(), prepared(unique=UniqueKey(b"held"))
    await bench.push(due, bad_due, waiting, bad_waiting)
    for bad in (bad_due, bad_running, bad_waiting):
        await damage(broker, bad.id, how)
    ids = [due.id, bad_due.id, running.id, bad_running.id, waiting.id, bad_waiting.id]
    readable = {due.id, running.id, waiting.id}
    assert (await broker.get(ids)).keys() == readable
    assert (await broker.watch(ids)).keys() == readable
    assert {job.id for job in await broker.find(JobFilter())} == readable
    await all_promoted(broker)
    # A damaged one is released like any claim that does not run, and set aside then.
    held = (await broker.running(bench.worker_id, besides=())).keys()
    assert {running.id} <= held <= {running.id, bad_running.id}
    assert await broker.position(bad_waiting.id) is None
    assert await broker.run_now([bad_waiting.id]) == frozenset()
    newer = prepared(unique=UniqueKey(b"held", on_conflict="replace"))
    assert await broker.push([newer, prepared(job_id=bad_due.id)]) == {newer.id: bad_waiting.id}
    stale = [settlement(claim, State.SUCCEEDED) for claim in (running, bad_running)]
    assert await broker.settle(stale) == {bad_running.id}
    cancelled = await broker.cancel([bad_waiting.id, waiting.id])
    assert [result.name for result in cancelled.values()] == ["UNKNOWN", "CANCELLED"]
    assert set(await set_aside(broker)) == {bad_due.id, bad_running.id, bad_waiting.id}
    await turn(broker)


@pytest.mark.parametrize("state", ["pending", "scheduled", "arriving", "running", "failed"])
async def test_a_record_of_a_later_version_is_left_for_workers_that_know_it(
    bench: Bench, broker: RedisBroker, state: str
) -> None:
    job = prepared(delay_s=0.001) if state == "scheduled" else prepared()
    if state in ("running", "failed"):
        [claim] = await bench.running(job)
        if state == "failed":
            await bench.settle(settlement(claim, State.FAILED))
    elif state == "arriving":
        mark = job.id.bytes + b"m" + bytes(8)
        args = (await broker.now_s() + 60, 9, 0.001, mark, *records.pushed(job))
        await broker.client.run("relay", *args)
        state = "scheduled"
    else:
        await bench.push(job)
    known = await record_of(broker, job.id)
    later = bytes([VERSION + 1]) + known[1:]
    await write(broker, job.id, later)
    await all_promoted(broker)
    assert await bench.claim(10) == []
    assert await broker.orphans(heartbeat_age_s=0.0, limit=10) == []
    assert await broker.client.run("unarchived", 10) is not None
    assert await broker.get([job.id]) == {}
    await turn(broker)
    assert await record_of(broker, job.id) == later
    # A worker of the later release, for which this is its own version.
    await write(broker, job.id, known)
    await turn(broker)
    assert await set_aside(broker) == []
    found = (await broker.get([job.id]))[job.id]
    assert found.state.label == state
    await broker.register(worker_record(bench.worker_id))
    if state in ("pending", "scheduled"):
        await all_promoted(broker)
        assert [claim.id for claim in await bench.claim(10)] == [job.id]
    elif state == "running":
        assert [c.id for c in await broker.orphans(heartbeat_age_s=0.0, limit=10)] == [job.id]
    else:
        unarchived = await broker.client.run("unarchived", 10)
        assert unarchived[1] == job.id.bytes


async def test_unreadable_records_are_logged_once_and_shown_by_the_doctor(
    bench: Bench, broker: RedisBroker, caplog: pytest.LogCaptureFixture
) -> None:
    async def finding() -> tuple[bool, str]:
        [about] = [one for one in await examine(broker.settings) if one.about == "records"]
        return about.ok, about.found

    assert (await finding())[0]
    damaged, later = prepared(), prepared()
    await bench.push(damaged)
    await damage(broker, damaged.id, "cut")
    await bench.claim()
    for _ in range(2):
        await turn(broker)
    assert caplog.text.count("redis_records_unreadable records=1") == 1
    assert f"newest={damaged.id} reason=it is damaged" in caplog.text
    await bench.push(later)
    await damage(broker, later.id, "later")
    await bench.claim()
    await turn(broker)
    assert caplog.text.count("redis_records_unreadable records=2") == 1
    ok, found = await finding()
    assert not ok
    assert f"{later.id}: version {VERSION + 1}" in found
    assert f"{damaged.id}: it is damaged" in found
    await broker.client.command("DEL", key_of(broker, damaged.id), key_of(broker, later.id))
    await turn(broker)
    assert await finding() == (True, "workers have found none that cannot be read")


@pytest.mark.parametrize("on_conflict", get_args(OnConflict))
async def test_the_unique_key_of_a_deleted_record_is_free(
    bench: Bench, broker: RedisBroker, on_conflict: OnConflict
) -> None:
    unique = UniqueKey(b"held", on_conflict)
    gone, newer, newest = (prepared(unique=unique) for _ in range(3))
    await bench.push(gone)
    await broker.client.command("DEL", key_of(broker, gone.id))
    assert await broker.push([newer]) == {}
    assert [claim.id for claim in await bench.claim()] == [newer.id]
    skipping = newest._replace(unique=UniqueKey(b"held"))
    assert await broker.push([skipping]) == {newest.id: newer.id}


async def test_a_period_holds_the_key_of_a_deleted_record(
    bench: Bench, broker: RedisBroker
) -> None:
    first, second = (prepared(unique=UniqueKey(b"held", period_s=3_600.0)) for _ in range(2))
    await bench.push(first)
    await broker.client.command("DEL", key_of(broker, first.id))
    assert await broker.push([second]) == {second.id: first.id}


#: Strings of the same length as the valid ones that they replace.
UNDECODABLE = [
    pytest.param(b'{"a": 1}', b'{"\xff": 1}', id="arguments"),
    pytest.param(b"shop.jobs.work", b"shop.jobs.wor\xff", id="func"),
    pytest.param(b'{"m": 1}', b'{"m": \xff}', id="meta"),
]


@pytest.mark.parametrize(("old", "new"), UNDECODABLE)
@pytest.mark.parametrize("when", ["claimed", "orphaned"])
async def test_a_job_that_cannot_be_decoded_fails_alone(
    bench: Bench, broker: RedisBroker, old: bytes, new: bytes, when: str
) -> None:
    good, bad = prepared(), prepared(arguments='{"a": 1}', meta='{"m": 1}')

    async def spoil() -> None:
        await write(broker, bad.id, (await record_of(broker, bad.id)).replace(old, new))

    if when == "claimed":
        await bench.push(good, bad)
        await spoil()
        claims = await bench.claim(10)
    else:
        await bench.running(good, bad)
        await spoil()
        claims = list(await broker.orphans(heartbeat_age_s=0.0, limit=10))
    assert [claim.id for claim in claims] == [good.id]
    found = await broker.get([good.id, bad.id])
    assert found[good.id].state is State.RUNNING
    assert found[bad.id].state is State.FAILED
    assert found[bad.id].errors[-1]["types"] == ["chancy.Unreadable"]
    assert await set_aside(broker) == []
    [listed] = await broker.find(JobFilter(states=frozenset({State.FAILED})))
    assert listed.id == bad.id


async def test_a_result_that_cannot_be_decoded_is_not_reported_as_none(
    bench: Bench, broker: RedisBroker, caplog: pytest.LogCaptureFixture
) -> None:
    good, bad = await bench.running(prepared(), prepared())
    await bench.settle(*(settlement(c, State.SUCCEEDED)._replace(result="17") for c in (good, bad)))
    record = await record_of(broker, bad.id)
    await write(broker, bad.id, record[:-2] + b"{]")
    assert (await broker.get([good.id, bad.id])).keys() == {good.id}
    assert f"job_unreadable job={bad.id}" in caplog.text


#: More than a script recounts by their records.
MANY = 150


async def test_counters_that_were_deleted_are_counted_again(
    bench: Bench, broker: RedisBroker
) -> None:
    """While jobs wait and run, some of which end."""
    await bench.push(*(prepared() for _ in range(MANY)))
    await bench.push(*(prepared(delay_s=3600.0) for _ in range(20)))
    claims = await bench.claim(10)
    await broker.client.command("DEL", f"{broker.tag}:n")
    await bench.settle(*(settlement(one, State.SUCCEEDED) for one in claims[:7]))
    assert (await broker.counts())["default"][:3] == (0, 0, 0)
    await Upkeep(broker.client).turn()
    assert (await broker.counts())["default"][:3] == (MANY - 10, 3, 20)
    await bench.settle(*(settlement(one, State.SUCCEEDED) for one in claims[7:]))
    assert (await broker.counts())["default"][:3] == (MANY - 10, 0, 20)


async def test_jobs_with_large_arguments_are_counted_again(
    bench: Bench, broker: RedisBroker
) -> None:
    large = '"' + "a" * 60_000 + '"'
    await bench.push(*(prepared(arguments=large, delay_s=3600.0) for _ in range(20)))
    await broker.client.command("DEL", f"{broker.tag}:n")
    await Upkeep(broker.client).turn()
    assert (await broker.counts())["default"][:3] == (0, 0, 20)


async def test_a_slot_of_a_deleted_job_is_free_again_though_many_are_scheduled(
    bench: Bench, broker: RedisBroker
) -> None:
    rules = (GlobalConcurrency(2),)
    await broker.declare(Queue(name="default", broker="redis", rules=rules), upsert=True)
    await bench.push(*(prepared(delay_s=3600.0) for _ in range(MANY)))
    await bench.push(*(prepared() for _ in range(3)))
    for claim in await bench.claim(10):
        await broker.client.command("DEL", broker.tag.encode() + b":j:" + claim.id.bytes)
    assert await bench.claim(10) == []
    await Upkeep(broker.client).turn()
    assert (await broker.counts())["default"][:3] == (1, 0, MANY)
    assert len(await bench.claim(10)) == 1


async def test_jobs_of_a_deleted_list_are_no_longer_counted(
    bench: Bench, broker: RedisBroker
) -> None:
    await bench.push(*(prepared() for _ in range(3)))
    await broker.client.command("DEL", f"{broker.tag}:r:default")
    await Upkeep(broker.client).turn()
    assert "default" not in await broker.counts()
    await bench.push(prepared())
    assert (await broker.counts())["default"].pending == 1
    assert len(await bench.claim(10)) == 1


async def test_a_queue_with_settings_of_a_later_release_is_read(broker: RedisBroker) -> None:
    queue = await broker.declare(Queue(name="later", concurrency=3))
    name = f"{broker.tag}:queues"
    stored = json.loads(await broker.client.command("HGET", name, "later"))
    await broker.client.command("HSET", name, "later", json.dumps({**stored, "color": "blue"}))
    assert await broker.declare(Queue(name="later", concurrency=3)) == queue
    assert await broker.queues("later") == [queue]
