"""The leases of a worker are given up while its calls to Redis hang."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack

import pytest

from chancy.plugins.redis.services.keeper import Held, Keeper
from chancy.plugins.redis.services.ledger import Ledger, Taken
from tests.proxy import Proxy
from tests.redis.services.shop import declare, shop
from tests.redis_fixtures import RedisServer
from tests.waiting import eventually_sync

#: Of which a fifth is left for stopping; a machine that is busy may take half of that.
_LEASE_S = 2.0
_PHASES = 10


@pytest.mark.row("P37")
def test_the_last_fifth_of_a_lease_is_left_whatever_hangs(
    own_redis: Callable[..., RedisServer],
) -> None:
    """The line goes dead at ten moments between two renewals."""
    server = own_redis()
    left: dict[str, float] = {}
    with (
        shop(server.url, cluster=False) as place,
        Proxy("127.0.0.1", server.port) as proxy,
        ExitStack() as stack,
    ):
        for number in range(_PHASES):
            services = declare(f"redis://127.0.0.1:{proxy.port}/0")
            stack.callback(services.close)
            link = services.link.within(Keeper.patience_s(_LEASE_S))
            stack.callback(link.close)
            ledger = Ledger(link, f"worker {number}", _LEASE_S)
            keeper = Keeper(ledger)
            place.services.blocking.begin("beat", {}, id=f"{number}")
            asked = time.monotonic()
            (taken,) = ledger.claim(1)
            assert isinstance(taken, Taken)
            _hold(keeper, taken, asked + _LEASE_S, left)
            keeper.start()
            stack.callback(keeper.close)
            # They renew one after the other, over the time between two renewals.
            time.sleep(_LEASE_S / 5 / _PHASES)
        proxy.black_hole()
        eventually_sync(lambda: len(left) == _PHASES, timeout=2 * _LEASE_S)
        proxy.heal()
    worst = min(left.values())
    assert worst > _LEASE_S / 10, f"{worst:.2f} s are left of the lease: {left}"


def _hold(keeper: Keeper, taken: Taken, until: float, left: dict[str, float]) -> None:
    """Note how many seconds of the lease are left as it is given up."""

    def lose() -> None:
        left[taken.id] = held.until - time.monotonic()

    held = Held(taken.id, taken.token, until, lambda wanted, asked: None, lose)
    keeper.hold(held)
