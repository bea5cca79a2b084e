"""Claims of a plugin under the failure rule."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from uuid import UUID

from chancy.attempt.claim import Claim
from chancy.broker.contract import never
from chancy.containment import Containment, HookFailed, refuse
from chancy.errors import BrokerError
from chancy.plugin.runtime import QueueClaims

#: Seconds within which a plugin must claim: longer than the statements of `GlobalLimits` may take.
CLAIM_S = 90.0


class ContainedClaims:
    """Claims of a plugin. Whatever it does, the worker claims again later.

    :param contained: of the plugin's hook `claiming`.
    """

    def __init__(self, claims: QueueClaims, contained: Containment) -> None:
        self._claims = claims
        self._contained = contained

    @property
    def waits(self) -> bool:
        """See `QueueClaims`; False if that fails."""
        return self._contained.call(False, None, self._waits)

    def _waits(self) -> bool:
        return self._claims.waits

    async def claim(
        self,
        queue: str,
        *,
        worker_id: UUID,
        limit: int,
        thorough: bool = False,
        knows: Callable[[str], bool] = never,
    ) -> Sequence[Claim]:
        """See `chancy.broker.contract.Claims`.

        :raises BrokerError: the broker or the plugin failed.
        """
        claim = partial(
            self._claims.claim,
            queue,
            worker_id=worker_id,
            limit=limit,
            thorough=thorough,
            knows=knows,
        )
        try:
            claims = await self._contained.run(None, _claimed, claim, limit_s=CLAIM_S)
        except HookFailed as error:
            plugin = self._contained.plugin
            raise BrokerError(f"the plugin {plugin!r} did not claim: {error}") from error
        if isinstance(claims, BrokerError):
            raise claims
        return claims


async def _claimed(
    claim: Callable[[], Awaitable[Sequence[Claim]]],
) -> Sequence[Claim] | BrokerError:
    try:
        claims = await claim()
    except BrokerError as error:  # an outage is not a failure of the plugin
        return error
    if not isinstance(claims, list | tuple) or not set(map(type, claims)) <= {Claim}:
        refuse(claims, "claim()", "a list of claims")
    return claims
