"""A worker process: ``python -m benchmarks.worker SCHEMA QUEUE…``.

Reads the DSN from CHANCY_DSN. Creates the file ``ready`` in the directory of the tally once it
listens for notifications. Stops gracefully at the end of its input, and so also when the benchmark
dies.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from benchmarks.tally import DIRECTORY
from chancy import Chancy, Worker


async def serve(schema: str, queues: list[str]) -> None:
    app = Chancy(schema=schema, allow=["benchmarks.jobs.*"])
    async with app, Worker(app, queues=queues) as worker:
        asyncio.get_running_loop().add_reader(sys.stdin.fileno(), worker.shut_down)
        _announce(worker)
        await worker.wait_for_shutdown()


def _announce(worker: Worker) -> None:
    if worker.listening:
        Path(os.environ[DIRECTORY], "ready").touch()
    else:
        asyncio.get_running_loop().call_later(0.01, _announce, worker)


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], sys.argv[2:]))
