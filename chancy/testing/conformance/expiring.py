"""Contract tests of jobs that expire, for brokers with `Capability.EXPIRY`."""

from __future__ import annotations

from chancy.broker.values import Capability
from chancy.states import State
from chancy.testing.conformance.bench import FUTURE, PAST, Bench, Promises, prepared


class ExpiryPromises(Promises):
    async def test_an_expired_job_is_not_claimed_and_cancelled_with_a_reason(
        self, bench: Bench
    ) -> None:
        if Capability.EXPIRY not in bench.broker.capabilities:
            return
        [late] = await bench.push(prepared()._replace(expires=PAST))
        [ahead] = await bench.push(prepared(run_at=FUTURE)._replace(expires=-1.0))
        [good] = await bench.push(prepared()._replace(expires=60.0))
        assert [claim.id for claim in await bench.claim()] == [good]
        await bench.broker.promote(10)
        found = await bench.broker.get([late, ahead, good])
        assert found[late].state is found[ahead].state is State.CANCELLED
        assert "expired: it had not started by 2001" in found[late].errors[-1]["message"]
        assert found[good].state is State.RUNNING
