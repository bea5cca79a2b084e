"""Decodes the payloads of jobs before they run, and encodes their outcomes, with a codec."""

from __future__ import annotations

from uuid import UUID

from chancy.attempt.claim import Claim
from chancy.attempt.failure import Failure
from chancy.attempt.outcome import Outcome, Raised
from chancy.executors.base import Executor, WrappingExecutor
from chancy.plugin.payloads import StoredPayloads


class PayloadExecutor(WrappingExecutor):
    """Runs claims with decoded payloads in another executor.

    Only that executor gets decoded payloads: outcomes that are judged, logged, settled and passed
    to plugins are encoded.
    """

    def __init__(self, executor: Executor, payloads: StoredPayloads) -> None:
        super().__init__(executor)
        self._payloads = payloads
        #: Running claims, decoded: executors identify an attempt by its claim object.
        self._decoded: dict[tuple[UUID, UUID], Claim] = {}

    async def run(self, claim: Claim) -> Outcome:
        try:
            decoded = self._payloads.claim(claim)
        except Exception as error:
            return Raised(Failure.of(error), error=error)
        if decoded is claim:
            return self._payloads.outcome(claim, await self._executor.run(claim))
        key = claim.id, claim.lease
        self._decoded[key] = decoded
        try:
            return self._payloads.outcome(claim, await self._executor.run(decoded))
        finally:
            del self._decoded[key]

    def interrupt(self, claim: Claim, outcome: Outcome) -> bool:
        return self._executor.interrupt(self._decoded.get((claim.id, claim.lease), claim), outcome)
