"""Leadership: of many workers one does what need not be done by all."""

from __future__ import annotations

from chancy.broker.optional import SqlStore
from chancy.broker.values import Capability
from chancy.errors import ConfigurationError
from chancy.plugin.leader import LeaderGate, Unelected
from chancy.plugin.plugin import Plugin
from chancy.plugin.runtime import Runtime
from chancy.plugins.leadership.election import Election
from chancy.postgres.schema.component import Migrations

__all__ = ["Election", "ImmediateLeadership", "Leadership"]

_IDENTIFIER = "chancy.leadership"
_MIGRATIONS = Migrations(
    name="leadership", package="chancy.plugins.leadership.migrations", head="0001"
)


class Leadership(Plugin):
    """Elects a leader by a lease in the database.

    A worker that dies leads for ``lease_s`` more; one that stops gives the lease back. With
    another broker than Postgres there is no election: every worker leads.

    :param lease_s: seconds for which a lease holds unless it is renewed. The same in every worker.
    :param renew_s: seconds between renewals, less up to a fifth; a third of the lease unless given.
    :raises ConfigurationError: a lease below 0.1 s, or one that a single late renewal would end.
    """

    def __init__(self, *, lease_s: float = 15.0, renew_s: float | None = None) -> None:
        if not 0.1 <= lease_s <= 3600:
            raise ConfigurationError(f"lease_s={lease_s:g} must be from 0.1 to 3600 seconds")
        self.lease_s = lease_s
        self.renew_s = renew_s
        if renew_s is not None and not 0 < renew_s < lease_s / 2:
            raise ConfigurationError(
                f"renew_s={renew_s:g} must be more than 0 and less than half of "
                f"lease_s={lease_s:g}: one late renewal would end the lease"
            )

    @classmethod
    def get_identifier(cls) -> str:
        return _IDENTIFIER

    def migrations(self) -> Migrations | None:
        return _MIGRATIONS

    def gate(self, runtime: Runtime) -> LeaderGate | None:
        store = runtime.broker
        if Capability.SQL not in store.capabilities or not isinstance(store, SqlStore):
            return None
        renew_s = self.lease_s / 3 if self.renew_s is None else self.renew_s
        return Election(runtime, store, lease_s=self.lease_s, renew_s=renew_s)

    async def serve(self, runtime: Runtime) -> None:
        if isinstance(runtime.leader, Election):
            await runtime.leader.serve()


class ImmediateLeadership(Plugin):
    """Lets every worker lead from its start, in term 0: for tests, and for those who have one
    worker. Put in place of `Leadership`."""

    @classmethod
    def get_identifier(cls) -> str:
        return _IDENTIFIER

    def migrations(self) -> Migrations | None:
        return _MIGRATIONS

    def gate(self, runtime: Runtime) -> LeaderGate | None:
        return Unelected()
