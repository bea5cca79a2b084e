"""Commands and reads of services, also by other programs."""

from __future__ import annotations

import time
from typing import Any

import pytest

from chancy.errors import ConfigurationError, InvalidArguments, PayloadTooLarge
from chancy.plugins.redis.keys import named_keys, own_keys
from chancy.plugins.redis.services import NoService, Service, ServiceRuns
from chancy.plugins.redis.services.leases import Leases, Passed, Taken
from chancy.plugins.redis.services.supervision import sweep
from tests.plugins.redis.services.shop import LEASE_S, Beat, Shop, take
from tests.support.redis_commands import command_sync
from tests.support.waiting import eventually


@pytest.mark.row("P04", "P42")
async def test_an_id_that_waits_is_started_once(place: Shop) -> None:
    first = await place.services.start("give", id="mine", cleanup=False, value=1)
    await place.services.start("give", id="other")
    assert await place.services.start("give", id="mine", cleanup=False, value=2) == first
    assert place.waiting == ["mine", "other"]
    async with place.worker():
        await eventually(lambda: place.notes("given") == ["mine", "other"])
        await eventually(place.is_state("mine", "SUCCESS"))
        found = await place.found("mine")
        assert found.output == 2


@pytest.mark.row("P05")
async def test_an_id_that_runs_is_not_started(alone: Shop) -> None:
    id = await alone.services.start("beat")
    async with alone.worker():
        await eventually(lambda: alone.has_ticked(id))
        with pytest.raises(ServiceRuns, match="reload or restart"):
            await alone.services.start("beat", id=id)
        # Another program that pushes the id does not start it either.
        key = alone.services.keys.of(id)
        token = alone.raw.hget(key, "token")
        alone.raw.lpush(alone.services.keys.waiting, id)
        await alone.services.start("give", id="behind")
        await eventually(lambda: alone.notes("given") == ["behind"])
        assert alone.raw.hget(key, "token") == token
        assert alone.notes(id) == ["begin "]


@pytest.mark.row("P06", "P07", "P42")
async def test_other_programs_start_services_by_plain_commands(place: Shop) -> None:
    keys = place.services.keys
    command_sync(place.raw, "HSET", keys.of("raw"), "task", "give", "cleanup", "false")
    command_sync(place.raw, "LPUSH", keys.waiting, "raw")
    command_sync(
        place.raw, "HSET", keys.of("more"), "task", "give", "data", '{"value":[7]}', "cleanup",
        "false",
    )  # fmt: skip
    command_sync(place.raw, "LPUSH", keys.waiting, "more")
    assert await place.state("raw") == "WAIT"
    async with place.worker():
        await eventually(place.is_state("raw", "SUCCESS"))
        await eventually(place.is_state("more", "SUCCESS"))
    found = await place.found("more")
    assert found.output == [7]


@pytest.mark.row("P06")
async def test_other_programs_stop_services_by_a_field(alone: Shop) -> None:
    id = await alone.services.start("beat")
    async with alone.worker(alone.declare(lease_s=60.0)):
        await eventually(lambda: alone.has_ticked(id))
        command_sync(alone.raw, "HSET", alone.services.keys.of(id), "wanted", "stop")
        command_sync(alone.raw, "XADD", alone.services.keys.control, "*", "id", id)
        await eventually(alone.is_state(id, "STOPPED"))


@pytest.mark.row("P06")
@pytest.mark.parametrize("state", ["STOPPED", "SUCCESS", "ERROR"])
@pytest.mark.parametrize("wanted", ["stop", "remove"])
def test_a_stop_of_a_service_at_rest_does_not_stop_its_next_start(
    alone: Shop, state: str, wanted: str
) -> None:
    keys, ledger = alone.services.keys, Leases(alone.services.link, "mine", 60.0)
    alone.raw.hset(keys.of("raw"), mapping={"task": "beat", "state": state, "wanted": wanted})
    alone.raw.lpush(keys.waiting, "raw")
    taken = take(ledger)
    assert ledger.renew([("raw", taken.token)]) == [""], "nor is it carried out later"


@pytest.mark.row("P06")
@pytest.mark.parametrize("by", ["call", "commands"])
def test_a_stop_between_a_start_and_its_claim_stops(alone: Shop, by: str) -> None:
    keys, ledger = alone.services.keys, Leases(alone.services.link, "mine", 60.0)
    if by == "call":
        alone.raw.hset(keys.of("raw"), mapping={"task": "beat", "state": "STOPPED"})
        alone.services.blocking.restart("raw")
    else:
        alone.raw.hset(keys.of("raw"), mapping={"task": "beat"})
        alone.raw.lpush(keys.waiting, "raw")
    alone.raw.hset(keys.of("raw"), "wanted", "stop")
    assert list(ledger.claim(1)) == [Passed("raw", "stopped")]
    assert alone.raw.hmget(keys.of("raw"), "state", "wanted") == [b"STOPPED", None]
    # Only once: the next start runs it.
    alone.raw.lpush(keys.waiting, "raw")
    assert isinstance(ledger.claim(1)[0], Taken)


@pytest.mark.row("P08")
async def test_the_oldest_is_taken_first(alone: Shop) -> None:
    ids = [await alone.services.start("give") for _ in range(20)]
    async with alone.worker(alone.declare(concurrency=1)):
        await eventually(lambda: len(alone.notes("given")) == 20)
    assert alone.notes("given") == ids


@pytest.mark.row("P14")
async def test_an_id_without_a_record_is_dropped(
    alone: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    keys = alone.services.keys
    alone.raw.lpush(keys.waiting, "ghost")
    alone.raw.sadd(keys.known, "ghost", "phantom")
    async with alone.worker():
        await eventually(lambda: alone.raw.smembers(keys.known) == set() and not alone.waiting)
    assert not alone.raw.exists(keys.of("ghost"))
    assert "service_without_record service=ghost" in caplog.text
    assert "service_without_record service=phantom" in caplog.text


@pytest.mark.row("P25", "P42", "P43")
async def test_stopped_and_ended_services_can_run_on_any_worker(
    place: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    # How often an idle worker looks for ids that other programs have only pushed.
    monkeypatch.setattr("chancy.plugins.redis.services.supervision._IDLE_S", 0.5)
    beat = await place.services.start("beat")
    give = await place.services.start("give", cleanup=False, value=1)
    async with place.worker():
        await eventually(lambda: place.has_ticked(beat))
        await place.services.stop(beat)
        await eventually(place.is_state(beat, "STOPPED"))
        await eventually(place.is_state(give, "SUCCESS"))
    assert await place.services.restart(beat) == "STOPPED"
    assert await place.services.restart(give) == "SUCCESS"
    await place.services.restart(beat)
    assert place.waiting == [beat, give]
    async with place.worker():
        await eventually(lambda: place.notes(beat) == ["begin ", "begin "])
        await eventually(lambda: place.notes("given") == [give, give])
        # A running service is stopped first.
        assert await place.services.restart(beat) == "RUNNING"
        await eventually(lambda: len(place.notes(beat)) == 3)
        assert place.notes(f"course:{beat}") == ["begin", "end"] * 2 + ["begin"]
        # Another program only pushes the id.
        await place.services.stop(beat)
        await eventually(place.is_state(beat, "STOPPED"))
        for id in (beat, give):
            command_sync(place.raw, "LPUSH", place.services.keys.waiting, id)
        await eventually(lambda: len(place.notes(beat)) == 4)
        await eventually(lambda: place.notes("given") == [give] * 3)


@pytest.mark.row("P25")
@pytest.mark.parametrize("found_by", ["owner", "sweep", "restart"])
def test_a_restart_is_done_once_though_the_lease_is_lost(alone: Shop, found_by: str) -> None:
    """By the owner's release, by a sweep, or by the restart itself after the end of the lease."""
    store, leases = alone.services.blocking, alone.services.keys.leases
    id = store.start("beat")
    ledger = Leases(alone.services.link, "mine", 60.0)
    taken = take(ledger)
    if found_by == "restart":
        alone.raw.zadd(leases, {id: 1})
    assert store.restart(id) == "RUNNING"
    if found_by == "owner":
        assert ledger.release(id, taken.token) == "WAIT"
        assert alone.waiting == [id]
    alone.raw.zadd(leases, {id: 1}, xx=True)
    ledger.sweep(keep_s=60.0, adopt_s=60.0)
    assert ledger.renew([(id, taken.token)]) == ["lost"]
    assert ledger.release(id, taken.token) == "lost"
    assert alone.waiting == [id], "it begins anew, and once"
    again = take(ledger)
    assert ledger.renew([(id, again.token)]) == [""], "nothing is wanted of it any more"


def test_few_large_services_are_claimed_by_one_call(alone: Shop) -> None:
    start = alone.services.blocking.start
    ids = [start("beat", text="x" * 100_000) for _ in range(5)]
    ledger = Leases(alone.services.link, "mine", 60.0)
    calls = [[service.id for service in ledger.claim(10)] for _ in range(4)]
    assert calls == [ids[:2], ids[2:4], ids[4:], []]


def test_a_former_holder_of_a_lease_changes_nothing(alone: Shop) -> None:
    id = alone.services.blocking.start("beat")
    old, new = (Leases(alone.services.link, owner, 60.0) for owner in ("old", "new"))
    was = take(old)
    alone.raw.zadd(alone.services.keys.leases, {id: 1}, xx=True)
    new.sweep(keep_s=60.0, adopt_s=60.0)
    taken = take(new)
    assert old.renew([(id, was.token)]) == ["lost"]
    assert not old.emit(id, was.token, "{}")
    assert not old.finish(id, was.token, "SUCCESS", "1", "{}")
    assert old.apply_request(id, was.token)[0] == "lost"
    assert old.release(id, was.token) == "lost"
    assert new.renew([(id, taken.token)]) == [""]


@pytest.mark.row("P26", "P42")
async def test_a_restart_may_depend_on_the_state(place: Shop) -> None:
    id = await place.services.start("beat")
    assert await place.services.stop(id) == "WAIT"
    assert await place.state(id) == "STOPPED"
    assert not await place.services.restart_if(id, ["RUNNING", "ERROR"])
    assert place.waiting == []
    assert await place.services.restart_if(id, ["STOPPED"])
    assert place.waiting == [id]
    with pytest.raises(NoService, match="no service nowhere"):
        await place.services.restart_if("nowhere", ["STOPPED"])


@pytest.mark.row("P27", "P42")
async def test_services_are_listed_read_and_removed(place: Shop) -> None:
    services, keys = place.services, place.services.keys
    beat = await services.start("beat", id="b", pace=2)
    await services.start("beat", id="w")
    async with place.worker(place.declare(concurrency=1, cleanup=False)):
        await eventually(lambda: place.has_ticked(beat))
        listed = await services.list()
        assert (listed.new, listed.active, listed.ended) == (["w"], ["b"], [])
        assert services.blocking.fields("b", ["task", "nothing"]) == {"task": "beat"}
        assert services.blocking.fields("b")["data"] == '{"pace":2}'
        assert await services.remove("w") == "WAIT"
        assert await services.remove("b") == "RUNNING"
        await eventually(place.is_state("b", None))
        assert place.notes("course:b") == ["begin", "end"]
        assert await services.remove("b") is None
        assert not place.raw.exists(keys.of("b"))
        listed = await services.list()
        assert (listed.new, listed.active, listed.ended) == ([], [], [])


@pytest.mark.row("P40")
async def test_names_of_keys_keep_applications_apart(alone: Shop) -> None:
    one, other = own_keys("one:"), named_keys(waiting="n", ended="e", known="k", hashes="s-")
    assert named_keys(
        waiting="n", ended="e", known="k", hashes="s-", clustered=True
    ).waiting == "{services}n"  # fmt: skip
    with pytest.raises(ConfigurationError, match="must differ"):
        named_keys(waiting="n", ended="n", known="k", hashes="s-")
    assert len({*one.script_keys, *other.script_keys}) == 6


class Idle(Service):
    name = "idle"


async def test_invalid_settings_are_refused(alone: Shop) -> None:
    with pytest.raises(InvalidArguments, match="cannot be represented as JSON"):
        await alone.services.start("beat", what=object())
    with pytest.raises(PayloadTooLarge, match="1,048,5"):
        await alone.services.start("beat", what="x" * 1_048_576)
    with pytest.raises(InvalidArguments, match="cannot be the id"):
        await alone.services.start("beat", id="")
    with pytest.raises(ConfigurationError, match="lease_s=0"):
        alone.services.configure(lease_s=0)
    with pytest.raises(ConfigurationError, match="service 'beat' is declared twice"):
        alone.services.service(Beat)
    with pytest.raises(ConfigurationError, match="Idle does not define start"):
        alone.services.service(Idle)
    with pytest.raises(ConfigurationError, match="'beat' is not of the form module:attribute"):
        alone.services.configure(handler="beat")
    with pytest.raises(ConfigurationError, match=r"'nowhere:x' cannot be imported: .*nowhere"):
        alone.services.configure(handler="nowhere:x")
    half: Any = 0.5
    with pytest.raises(ConfigurationError, match=r"replicas=0\.5 must be a whole number"):
        alone.services.configure(replicas=half)
    with pytest.raises(InvalidArguments, match=r"'STOPED' is not a state: use .*STOPPED"):
        await alone.services.restart_if("nowhere", ["STOPED"])
    with pytest.raises(NoService):
        await alone.services.stop("nowhere")
    with pytest.raises(NoService):
        await alone.services.set("nowhere", a=1)
    assert await alone.services.get("nowhere") is None
    assert alone.waiting == []


async def test_a_line_of_thousands_is_pushed_to_in_no_time(alone: Shop) -> None:
    alone.raw.lpush(alone.services.keys.waiting, *(f"id-{number}" for number in range(10_000)))
    await alone.services.start("beat", id="mine")
    took_s = list[float]()
    for _ in range(5):
        began = time.monotonic()
        await alone.services.start("beat", id="mine")
        took_s.append(time.monotonic() - began)
    # Other calls may have waited for a processor.
    assert min(took_s) < 0.1


async def test_services_left_running_by_another_program_are_queued_again(alone: Shop) -> None:
    keys = alone.services.keys
    alone.raw.hset(keys.of("old"), mapping={"task": "give", "state": "RUNNING", "cleanup": "false"})
    alone.raw.sadd(keys.known, "old")
    ledger = Leases(alone.services.link, "other", 10.0)
    assert ledger.sweep(keep_s=1.0, adopt_s=0.05).over == []
    assert alone.raw.zscore(keys.leases, "old")
    await eventually(lambda: list(ledger.sweep(keep_s=1.0, adopt_s=60.0).over) == [("old", "WAIT")])
    assert alone.waiting == ["old"]


async def test_a_sweep_may_wait_for_longer_than_the_lease(alone: Shop) -> None:
    id = await alone.services.start("give")
    ledger = Leases(alone.services.link, "gone", 1.0)
    assert len(ledger.claim(1)) == 1
    alone.raw.zincrby(alone.services.keys.leases, -1_500, id)
    assert ledger.sweep(keep_s=1.0, adopt_s=60.0, timeout_s=60.0).over == []
    assert list(ledger.sweep(keep_s=1.0, adopt_s=60.0).over) == [(id, "WAIT")]


async def test_many_workers_sweep_as_often_as_one(alone: Shop) -> None:
    keys = alone.services.keys
    alone.raw.sadd(keys.known, *(f"g{number}" for number in range(1_000)))
    for number in range(950):
        alone.raw.hset(keys.of(f"g{number}"), "state", "STOPPED")
    workers = [Leases(alone.services.link, f"w{number}", LEASE_S) for number in range(20)]
    command_sync(alone.raw, "CONFIG", "RESETSTAT")
    for worker in workers:
        sweep(worker, keep_s=1.0, every_s=60.0)
    assert alone.raw.info("commandstats")["cmdstat_sscan"]["calls"] == 1
    # Without `every_s`, each call sweeps, and continues where the last one ended.
    for worker in workers:
        sweep(worker, keep_s=1.0)
    assert alone.raw.scard(keys.known) == 950, "the others have no record"


async def test_one_sweep_finds_the_services_of_a_worker_that_ran_many(alone: Shop) -> None:
    for number in range(250):
        alone.services.blocking.start("give", id=f"g{number}")
    ledger = Leases(alone.services.link, "gone", 1.0)
    assert len(ledger.claim(250)) == 250
    leases = alone.services.keys.leases
    alone.raw.zadd(leases, dict.fromkeys(alone.raw.zrange(leases, 0, -1), 1))
    alone.services.sweep()
    assert len(alone.waiting) == 250
