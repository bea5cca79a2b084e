"""The leases of a worker are given up while its calls to Redis hang."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import Any

import pytest

from chancy.plugins.redis.services.lease_renewal import HeldLease, LeaseRenewal
from chancy.plugins.redis.services.leases import Leases, Taken
from chancy.plugins.redis.transport.scripts import script_of
from tests.plugins.redis.services.shop import Shop, declare, shop, take
from tests.support.proxy import Proxy
from tests.support.redis_fixtures import RedisServer
from tests.support.waiting import eventually_sync

#: A fifth is left for stopping, of which a busy machine may take half, a second.
_LEASE_S = 10.0
_PHASES = 10


@pytest.mark.row("P37")
@pytest.mark.chaos
def test_the_last_fifth_of_a_lease_is_left_whatever_hangs(
    apart: Shop,
    proxy: Proxy,
) -> None:
    """The connection hangs from ten different times between two renewals."""
    left: dict[str, float] = {}
    with ExitStack() as stack:
        for number in range(_PHASES):
            services = declare(f"redis://127.0.0.1:{proxy.port}/0")
            stack.callback(services.close)
            link = services.link.within(LeaseRenewal.patience_s(_LEASE_S))
            leases = Leases(link, f"worker {number}", _LEASE_S)
            renewal = LeaseRenewal(leases)
            apart.services.blocking.begin("beat", {}, id=f"{number}")
            asked = time.monotonic()
            taken = take(leases)
            _hold(renewal, taken, asked + _LEASE_S, left)
            renewal.start()
            stack.callback(renewal.close)
            # Their renewals are spread over the interval between two renewals.
            time.sleep(_LEASE_S / 5 / _PHASES)
        proxy.black_hole()
        eventually_sync(lambda: len(left) == _PHASES, timeout=2 * _LEASE_S)
        proxy.heal()
    worst = min(left.values())
    assert worst > _LEASE_S / 10, f"{worst:.2f} s are left of the lease: {left}"


def _hold(renewal: LeaseRenewal, taken: Taken, until: float, left: dict[str, float]) -> None:
    """Note the seconds that are left of a lease when it is given up."""

    def lose() -> None:
        left[taken.id] = held.until - time.monotonic()

    held = HeldLease(taken.id, taken.token, until, lambda wanted, asked: None, lose)
    renewal.hold(held)


def test_the_leases_of_one_renewal_do_not_hold_up_the_server(
    own_redis: Callable[..., RedisServer],
) -> None:
    """A busy machine delays some of the calls, but not all."""
    # Logging each command of a script would double its duration.
    server = own_redis(slowlog_log_slower_than="200", slowlog_max_len="100")
    with shop(server.url, cluster=False) as place, closing(server.client()) as client:
        leases = Leases(place.services.link, "worker", 60.0)
        for number in range(500):
            place.services.blocking.begin("beat", {}, id=f"{number}")
        taken = leases.claim(500)
        held = [(one.id, one.token) for one in taken if isinstance(one, Taken)]
        leases.renew(held)  # the server caches the script
        client.slowlog_reset()
        for _ in range(20):
            assert leases.renew(held) == [""] * 500
        listed: Any = client.slowlog_get(100)
    digest = script_of("services.renew").digest.encode()
    took_us = [one["duration"] for one in listed if digest in one["command"]]
    assert len(took_us) == 20, "each lease was renewed in the same script"
    # Usually 3 ms; 6 ms on a busy machine of half the speed.
    assert min(took_us) < 20_000
