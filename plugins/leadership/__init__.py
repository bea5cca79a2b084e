"""Leadership: one worker at a time does the work that is needed only once."""

from __future__ import annotations

from collections.abc import Sequence

from chancy.broker.optional import SqlStore
from chancy.broker.values import Capability
from chancy.checks import check_number
from chancy.errors import ConfigurationError
from chancy.plugin.finding import Finding, Severity
from chancy.plugin.leader import LeaderGate, Unelected
from chancy.plugin.plugin import Plugin
from chancy.plugin.runtime import Application, Runtime
from chancy.plugins.leadership.election import SQL, Election
from chancy.postgres.schema.component import Migrations
from chancy.text import elapsed

__all__ = ["Election", "ImmediateLeadership", "Leadership"]

_IDENTIFIER = "chancy.leadership"
_MIGRATIONS = Migrations(
    name="leadership", package="chancy.plugins.leadership.migrations", head="0001"
)


class Leadership(Plugin):
    """Elects a leader with a lease in the database.

    If a worker dies, its lease lasts up to ``lease_s`` more; a worker that stops releases it. With
    a broker other than Postgres there is no election: every worker leads.

    :param lease_s: seconds after which a lease expires unless it is renewed. Use the same value
        in every worker.
    :param renew_s: seconds between renewals, less up to a fifth. Default: a third of the lease.
    :raises ConfigurationError: the lease is shorter than 0.1 s or longer than an hour, or a single
        late renewal would end it.
    """

    def __init__(self, *, lease_s: float = 15.0, renew_s: float | None = None) -> None:
        check_number(lease_s, "lease_s", 0.1, 3_600, whole=False, unit="seconds")
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

    async def examine(self, app: Application) -> Sequence[Finding]:
        if Capability.SQL not in app.broker.capabilities:
            return ()
        rows = await SQL.on(app.broker).fetch("leader", self.lease_s)
        ((workers, holder, term, left_s),) = rows
        if left_s is not None and left_s > 0:
            return [Finding("leader", f"worker {holder}, in term {term}")]
        if not workers:
            return [Finding("leader", "none, as no worker has been alive for a whole lease")]
        ended = "" if left_s is None else f": the lease of {holder} ended {elapsed(-left_s)} ago"
        return [
            Finding(
                "leader",
                f"no worker leads{ended}; recovery, cron and pruning are late",
                "end the transaction that locks leadership_leases, if one is open; else see "
                "election_failed in the logs of the workers",
                Severity.ERROR,
            )
        ]

    async def serve(self, runtime: Runtime) -> None:
        if isinstance(runtime.leader, Election):
            await runtime.leader.serve()


class ImmediateLeadership(Plugin):
    """Makes every worker the leader from its start, in term 0.

    Pass it in place of `Leadership` in tests and in deployments with a single worker.
    """

    @classmethod
    def get_identifier(cls) -> str:
        return _IDENTIFIER

    def migrations(self) -> Migrations | None:
        return _MIGRATIONS

    def gate(self, runtime: Runtime) -> LeaderGate | None:
        return Unelected()
