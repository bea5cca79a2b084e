"""Claims of jobs that no store has."""

from __future__ import annotations

import uuid

from chancy.attempt.claim import Claim


def claimed(*, attempt: int = 1, crashes: int = 0, meta: str | None = None) -> Claim:
    return Claim(
        id=uuid.uuid4(),
        lease=uuid.uuid4(),
        worker_id=uuid.uuid4(),
        queue="default",
        func="shop.work",
        arguments="{}",
        attempt=attempt,
        max_attempts=3,
        crashes=crashes,
        priority=0,
        position=1,
        meta=meta,
    )
