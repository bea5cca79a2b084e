"""Contract tests of held jobs that wait to be released, for brokers with `Capability.HOLD`."""

from __future__ import annotations

import pytest

from chancy.broker.optional import Releasing
from chancy.broker.values import Capability, QueueCounts
from chancy.job.definition import HOLD
from chancy.states import State
from chancy.testing.conformance.bench import FUTURE, Bench, Promises, prepared, settlement
from chancy.testing.conformance.uniqueness import keyed


class HoldPromises(Promises):
    async def test_a_job_on_hold_is_not_claimed_until_it_is_released(self, bench: Bench) -> None:
        broker = bench.broker
        if Capability.HOLD not in broker.capabilities:
            return
        assert isinstance(broker, Releasing)
        ids = await bench.push(
            *(prepared(meta=f'{{"{HOLD}": "{key}", "kept": 1}}') for key in "aab"),
            prepared(meta=f'{{"{HOLD}": "b"}}', run_at=FUTURE),
        )
        [free] = await bench.push(prepared())
        assert {job.state for job in (await broker.get(ids)).values()} == {State.HELD}
        assert await broker.counts() == {"default": QueueCounts(pending=1, held=4)}
        assert [claim.id for claim in await bench.claim()] == [free]
        assert await broker.release(None, "a", limit=1, within=None) == [ids[0]]
        assert await broker.release([*ids[:2], free], None, limit=3, within=None) == [ids[1]]
        assert {*await broker.release(None, "b", limit=9, within=None)} == {*ids[2:]}
        assert await broker.release(None, "b", limit=9, within=None) == []
        assert [claim.id for claim in await bench.claim()] == ids[:3]
        found = await broker.get(ids)
        assert found[ids[0]].meta == {"kept": 1}
        assert found[ids[3]].state is State.SCHEDULED

    async def test_a_replaced_job_takes_over_the_hold_of_the_push(self, bench: Bench) -> None:
        broker = bench.broker
        if not {Capability.HOLD, Capability.UNIQUE} <= broker.capabilities:
            return
        assert isinstance(broker, Releasing)
        [id] = await bench.push(keyed(meta='{"kept": 1}'))
        for hold in ("a", "b"):
            await bench.push(keyed(on_conflict="replace", meta=f'{{"{HOLD}": "{hold}", "new": 2}}'))
            found = await bench.job(id)
            assert (found.state, found.meta) == (State.HELD, {"kept": 1, HOLD: hold})
        await bench.push(keyed(on_conflict="replace", run_at=FUTURE))
        assert (await bench.job(id)).state is State.HELD, "a push without a hold releases nothing"
        await bench.push(keyed(on_conflict="replace"))
        assert await bench.claim() == []
        assert await broker.release(None, "b", limit=9, within=None) == [id]
        assert [claim.id for claim in await bench.claim()] == [id]

    @pytest.mark.parametrize("waits", [State.HELD, State.SCHEDULED], ids=lambda s: s.label)
    async def test_a_hold_keeps_a_job_that_was_set_aside(self, bench: Bench, waits: State) -> None:
        if not {Capability.HOLD, Capability.UNIQUE} <= bench.broker.capabilities:
            return
        assert isinstance(bench.broker, Releasing)
        [claim] = await bench.running(keyed())
        await bench.settle(
            settlement(claim, State.HELD)._replace(refund=True, meta='{"unknown_function": 1}')
        )
        if waits is State.SCHEDULED:
            [again] = await bench.claim(knows=lambda _: True)
            await bench.settle(settlement(again, waits)._replace(run_at=FUTURE))
        await bench.push(keyed(on_conflict="replace", meta=f'{{"{HOLD}": "a"}}'))
        assert await bench.claim(knows=lambda _: True) == []
        assert await bench.broker.release(None, "a", limit=9, within=None) == [claim.id]
        assert [found.id for found in await bench.claim()] == [claim.id]
