"""The contract of brokers, as tests that every implementation runs.

    pytest.register_assert_rewrite("chancy.testing.conformance")
    from chancy.testing.conformance import BrokerContract

    class TestMyBroker(BrokerContract):
        @pytest.fixture
        async def brokers(self) -> AsyncIterator[tuple[Broker, Broker]]:
            ...  # two open brokers on one empty store; closed afterwards

The tests are async: run them with pytest-asyncio in its automatic mode. Jobs are due in 2001
or wait for the year 9999, so neither the clock of the store nor that of the test matters.
"""

from __future__ import annotations

from chancy.testing.conformance.bench import Bench
from chancy.testing.conformance.cancelling import CancelPromises
from chancy.testing.conformance.claiming import ClaimPromises
from chancy.testing.conformance.fencing import FencePromises
from chancy.testing.conformance.holding import HoldPromises
from chancy.testing.conformance.hostile import HostilePromises
from chancy.testing.conformance.listing import ListPromises
from chancy.testing.conformance.noticing import NoticePromises
from chancy.testing.conformance.noting import NotePromises
from chancy.testing.conformance.promoting import PromotePromises
from chancy.testing.conformance.pushing import PushPromises
from chancy.testing.conformance.queueing import QueuePromises
from chancy.testing.conformance.settling import SettlePromises
from chancy.testing.conformance.surviving import WorkerPromises
from chancy.testing.conformance.uniqueness import UniquePromises

__all__ = ["Bench", "BrokerContract"]


class BrokerContract(
    PushPromises,
    UniquePromises,
    ClaimPromises,
    SettlePromises,
    FencePromises,
    NotePromises,
    HostilePromises,
    PromotePromises,
    HoldPromises,
    CancelPromises,
    ListPromises,
    QueuePromises,
    WorkerPromises,
    NoticePromises,
):
    """All tests of the contract of `Broker`. A subclass provides the fixture ``brokers``."""
