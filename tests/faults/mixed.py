"""An application with a queue for each executor: ``chancy worker --app tests.faults.mixed:app``."""

from __future__ import annotations

import os

from chancy import Chancy, Queue
from tests.faults import jobs

# Importing the module registers its jobs.
JOBS = jobs


app = Chancy(
    os.environ["CHANCY_DSN"],
    queues=[
        Queue(name="children", executor="process", concurrency=4),
        Queue(name="threads", executor="thread", concurrency=8),
        Queue(name="loop", executor="async", concurrency=64),
    ],
)
