"""A join that Redis does not answer: whoever asks for it again is the same member."""

from __future__ import annotations

import logging
import time
from typing import Any

import pytest

from chancy.errors import BrokerUnavailable
from chancy.plugins.redis.streams.group.membership import Membership
from chancy.plugins.redis.streams.processing.ownership import Ownership
from chancy.plugins.redis.streams.processing.partition import OwnedPartition
from chancy.plugins.redis.streams.processing.processor import Options, Processor
from chancy.plugins.redis.transport.redis_client import RedisClient
from tests.plugins.redis.streams.fleet import fleet
from tests.support.waiting import eventually


class LostAnswers:
    """Joins are done, and their first answers are lost."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
        self.lost = 0
        call = RedisClient.run

        async def forgetful(
            link: RedisClient, script: str, keys: Any, args: Any = (), **more: Any
        ) -> Any:
            answer = await call(link, script, keys, args, **more)
            if script == "streams.membership" and args[0] == "join" and self.lost < count:
                self.lost += 1
                raise BrokerUnavailable("the answer is lost")
            return answer

        monkeypatch.setattr(RedisClient, "run", forgetful)


@pytest.mark.row("R24", "R31")
async def test_a_worker_whose_join_had_no_answer_has_all_partitions_at_once(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not when the lease of a member has ended that never was."""
    answers = LostAnswers(monkeypatch, 2)
    async with fleet(redis_url, partitions=8, options={"lease_s": 60}) as crew:
        await crew.start()
        await eventually(crew.settled, timeout=10)
        assert answers.lost == 2
        keys = crew.orders.keys
        assert await crew.orders.link.command("ZCARD", keys.members("handle")) == 1


@pytest.mark.row("R27")
async def test_a_worker_that_follows_a_killed_one_waits_for_its_lease(
    redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """And neither ends nor begins anew meanwhile; what the killed one had read comes first."""
    lease_s = 1.0
    async with fleet(redis_url, partitions=4, options={"lease_s": lease_s}) as crew:
        await crew.send(0, 20, keys=4)
        link, keys = crew.orders.link, crew.orders.keys

        async def nothing(_: object) -> None: ...

        killed = Processor(crew.orders, nothing, name="handle", options=Options(lease_s=lease_s))
        await Membership(link, killed, "killed").change("join")
        began = time.monotonic()
        for number, lane in (await Ownership(link, killed, "killed").acquire(range(4))).items():
            assert isinstance(lane, OwnedPartition)
            names = keys.own(number, "handle"), keys.log(number), keys.stat(number)
            await link.run(
                "streams.exchange", names, ("handle", "killed", lane.epoch, 2, ">", 1, 1_000)
            )
        worker = await crew.start()
        await eventually(lambda: worker.owned == set(range(4)))
        assert time.monotonic() - began >= lease_s
        await eventually(lambda: sorted(crew.numbers) == list(range(20)))
        assert crew.out_of_order() == []
        assert not [one for one in caplog.records if one.levelno >= logging.ERROR]


@pytest.mark.row("R25")
async def test_a_worker_that_ends_before_its_join_is_answered_is_no_member(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = LostAnswers(monkeypatch, 10**9)
    async with fleet(redis_url, partitions=8) as crew:
        worker = await crew.start()
        await eventually(lambda: answers.lost > 1)
        await crew.stop(worker)
        keys = crew.orders.keys
        assert await crew.orders.link.command("ZCARD", keys.members("handle")) == 0
