"""Services of one worker: nobody else ever has them."""

from __future__ import annotations

from functools import partial

import pytest

from chancy.plugins.redis.services import NoService
from chancy.plugins.redis.services.leases import Leases
from tests.plugins.redis.services.shop import LEASE_S, Shop
from tests.support.waiting import eventually


@pytest.mark.row("P33")
@pytest.mark.row("P42")
async def test_a_restart_starts_a_local_service_again_in_place(place: Shop) -> None:
    worker = place.declare()
    id = worker.start_local("beat")
    async with place.worker(worker):
        await eventually(lambda: place.has_ticked(id))
        for times in (2, 3):
            await place.services.restart(id)
            await eventually(partial(_has_begun, place, id, times))
        found = await place.services.get(id)
        assert found is not None
        assert (found.state, found.local, place.waiting) == ("RUNNING", True, [])


def _has_begun(place: Shop, id: str, times: int) -> bool:
    return place.notes(f"course:{id}").count("begin") == times


@pytest.mark.row("P31")
async def test_a_local_service_that_has_ended_is_restarted_by_no_worker(alone: Shop) -> None:
    worker = alone.declare(cleanup=False)
    id = worker.start_local("give", value=1)
    async with alone.worker(worker):
        await eventually(alone.is_state(id, "SUCCESS"))
        with pytest.raises(NoService):
            await alone.services.restart(id)
        assert alone.waiting == []
        assert (await alone.services.list()).ended == [id]


@pytest.mark.row("P31")
async def test_a_local_service_that_ends_as_a_restart_is_on_its_way_is_no_common_one(
    alone: Shop,
) -> None:
    leases = Leases(alone.services.link, "mine", LEASE_S)
    taken = leases.claim_local("here", "give", "{}")
    assert taken is not None
    await alone.services.restart("here")
    assert leases.finish("here", taken.token, "SUCCESS", "1", '{"event":"success","data":1}')
    assert alone.waiting == []
    assert (await alone.services.list()).ended == ["here"]


@pytest.mark.row("P31")
async def test_local_services_of_a_lost_worker_are_not_queued(alone: Shop) -> None:
    keys = alone.services.keys
    assert Leases(alone.services.link, "gone", LEASE_S).claim_local("here", "give", "{}")
    alone.raw.zadd(keys.leases, {"here": 1})
    other = Leases(alone.services.link, "other", LEASE_S)
    assert list(other.sweep(keep_s=60.0, adopt_s=60.0).over) == [("here", "removed")]
    assert not alone.raw.exists(keys.of("here"), keys.waiting, keys.leases, keys.known)
