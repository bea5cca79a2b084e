"""The stored start of an attempt: which jobs of a dead worker had started.

A write before each job would double the cost of short ones. So only the start of a job that has
crashed before is stored, and the first crash counts for all jobs that a dead worker held.
"""

from __future__ import annotations

import json

from chancy.attempt.claim import Claim

#: The key of a job's meta that holds the lease of its last stored start.
KEY = "started"


def start_of(claim: Claim) -> str:
    """The change of meta that stores the start of an attempt, as a JSON string."""
    return json.dumps({KEY: str(claim.lease)})


def may_have_started(claim: Claim) -> bool:
    """Whether the attempt of a dead worker may have started.

    :param claim: with the meta as stored now.
    """
    if not claim.crashes:
        return True
    try:
        return bool(json.loads(claim.meta or "{}").get(KEY) == str(claim.lease))
    except (ValueError, AttributeError, RecursionError):
        return True
