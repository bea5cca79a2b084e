"""Decoding of several records: one that cannot be decoded does not affect the others.

The scripts return records with a valid layout only. Their strings may still be damaged.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from itertools import repeat
from uuid import UUID

from chancy.attempt.claim import Claim
from chancy.attempt.failure import Failure
from chancy.attempt.settlement import Settlement
from chancy.errors import BrokerError
from chancy.job.definition import QueuedJob
from chancy.plugins.redis import records
from chancy.states import State

logger = logging.getLogger("chancy.redis")

Settle = Callable[[Sequence[Settlement]], Awaitable[frozenset[UUID]]]


async def decode_claims(
    pairs: Sequence[bytes], settle: Settle, taken: tuple[UUID, UUID] | None = None
) -> list[Claim]:
    """The claims of running jobs. Jobs that cannot be decoded fail, and become dead letters.

    :param pairs: id and record of each job in turn.
    :param settle: `Broker.settle`.
    :param taken: see `chancy.plugins.redis.records.claim`.
    """
    try:
        # All at once: claims are the hot path, and nearly all can be decoded.
        return list(map(records.claim, pairs[::2], pairs[1::2], repeat(taken)))
    except Exception:
        claims, failed = list[Claim](), list[Settlement]()
    for id, record in zip(pairs[::2], pairs[1::2], strict=True):
        try:
            claims.append(records.claim(id, record, taken))
        except Exception as error:
            _log_unreadable(id, error)
            lease = taken[0] if taken else records.lease_of(record)
            failure = Failure.named(records.UNREADABLE, f"the record cannot be decoded: {error}")
            failed.append(Settlement(UUID(bytes=id), lease, State.FAILED, failure=failure))
    try:
        await settle(failed)
    except BrokerError as error:
        # They are found again by the reconciler, or by the next sweep.
        logger.warning("unreadable_jobs_kept jobs=%d error=%s", len(failed), error)
    return claims


def decode_jobs(pairs: Sequence[bytes]) -> list[QueuedJob]:
    """Jobs from id and record of each in turn; those that cannot be decoded are left out."""
    jobs: list[QueuedJob] = []
    for id, record in zip(pairs[::2], pairs[1::2], strict=True):
        try:
            jobs.append(records.queued(id, record))
        except Exception as error:
            _log_unreadable(id, error)
    return jobs


def _log_unreadable(id: bytes, error: Exception) -> None:
    logger.error("job_unreadable job=%s error=%s", UUID(bytes=id), error)
