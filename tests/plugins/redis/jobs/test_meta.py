"""Meta that is changed again and again stays as small as what it says."""

from __future__ import annotations

import json
import uuid

from chancy.attempt.settlement import Note
from chancy.plugins.redis import RedisBroker, records
from chancy.plugins.redis.jobs import meta as folding
from chancy.states import State
from chancy.testing.conformance.bench import Bench, prepared, settlement


async def record_of(bench: Bench, id: bytes) -> bytes:
    assert isinstance(bench.broker, RedisBroker)
    [record] = await bench.broker.client.run("fetch", 0, 0, id)
    assert isinstance(record, bytes)
    return record


async def test_a_job_that_is_put_off_200_times_stays_small(bench: Bench) -> None:
    job = prepared(meta='{"workflow": {"step": "a"}}')
    await bench.broker.push([job])
    most = 0
    for n in range(200):
        [claim] = await bench.claim(1)
        patch = json.dumps({"snoozes": n + 1, "ä": "ö"})
        put_off = settlement(claim, State.PENDING)._replace(refund=True, meta=patch)
        assert await bench.broker.settle([put_off]) == frozenset()
        meta = records.meta_of(await record_of(bench, job.id.bytes))
        most = max(most, meta.count(b"\n"))
    assert most == folding.MOST
    [claim] = await bench.claim(1)
    assert claim.meta is not None
    assert json.loads(claim.meta) == {"workflow": {"step": "a"}, "snoozes": 200, "ä": "ö"}


async def test_a_job_that_logs_much_stays_small(bench: Bench) -> None:
    job = prepared(meta='{"workflow": {"step": "a"}}')
    await bench.broker.push([job])
    [claim] = await bench.claim(1)
    for n in range(100):
        note = Note(claim.id, claim.lease, json.dumps({"progress": n}))
        assert await bench.broker.update_meta([note]) == frozenset()
        meta = records.meta_of(await record_of(bench, job.id.bytes))
        assert meta.count(b"\n") < folding.MOST
    found = await bench.broker.get([job.id])
    assert found[job.id].meta == {"workflow": {"step": "a"}, "progress": 99}


async def test_checkpoints_of_many_kilobytes_are_kept_once(bench: Bench) -> None:
    """Each write has all checkpoints of the attempt."""
    [claim] = await bench.running(prepared(meta='{"workflow": {"step": "a"}}'))
    kept = dict[str, str]()
    for n in range(20):
        kept[str(n)] = "x" * 20_000
        text = json.dumps({"checkpoints": kept})
        note = Note(claim.id, claim.lease, text)
        assert await bench.broker.update_meta([note]) == frozenset()
        meta = records.meta_of(await record_of(bench, claim.id.bytes))
        assert len(meta) < 2 * len(text) + folding.MOST_BYTES
    found = await bench.broker.get([claim.id])
    assert found[claim.id].meta == {"workflow": {"step": "a"}, "checkpoints": kept}


async def test_a_job_that_is_put_off_with_many_kilobytes_keeps_few_of_them(bench: Bench) -> None:
    job, much = prepared(), "x" * 100_000
    await bench.push(job)
    for n in range(10):
        [claim] = await bench.claim(1)
        patch = json.dumps({"much": much, "n": n})
        put_off = settlement(claim, State.PENDING)._replace(refund=True, meta=patch)
        assert await bench.broker.settle([put_off]) == frozenset()
        meta = records.meta_of(await record_of(bench, job.id.bytes))
        assert len(meta) < 2 * len(patch) + folding.MOST_BYTES
    assert (await bench.job(job.id)).meta == {"much": much, "n": 9}


async def test_progress_reported_meanwhile_is_not_lost(bench: Bench) -> None:
    await bench.broker.push([prepared(meta='{"a": 1}')])
    [claim] = await bench.claim(1)
    assert isinstance(bench.broker, RedisBroker)
    link, before = bench.broker.client, await record_of(bench, claim.id.bytes)
    await bench.broker.update_meta([Note(claim.id, claim.lease, '{"b": 2}')])
    await folding.fold(link, claim.id, claim.lease, before)
    await folding.fold(link, claim.id, uuid.uuid4(), await record_of(bench, claim.id.bytes))
    meta = records.meta_of(await record_of(bench, claim.id.bytes))
    assert meta == b'{"a": 1}\n{"b": 2}'
    await folding.fold(link, claim.id, claim.lease, await record_of(bench, claim.id.bytes))
    meta = records.meta_of(await record_of(bench, claim.id.bytes))
    assert json.loads(meta) == {"a": 1, "b": 2}
