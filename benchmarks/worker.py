"""A worker process: ``python -m benchmarks.worker [--mode MODE] SCHEMA QUEUE…``.

Reads the DSN from CHANCY_DSN. A mode is one of `benchmarks.observers`. Creates the file ``ready``
in the directory of the tally once it listens for notifications. Stops gracefully at the end of its
input, and so also when the benchmark dies.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.tally import DIRECTORY
from chancy import Chancy, Plugin, Worker


async def serve(schema: str, queues: list[str], plugins: Sequence[Plugin]) -> None:
    app = Chancy(schema=schema, allow=["benchmarks.jobs.*"], plugins=plugins)
    async with app, Worker(app, queues=queues) as worker:
        asyncio.get_running_loop().add_reader(sys.stdin.fileno(), worker.shut_down)
        _announce(worker)
        await worker.wait_for_shutdown()


def _announce(worker: Worker) -> None:
    if worker.listening:
        Path(os.environ[DIRECTORY], "ready").touch()
    else:
        asyncio.get_running_loop().call_later(0.01, _announce, worker)


def _plugins(mode: str) -> Sequence[Plugin]:
    # Not needed in other modes, whose memory is measured.
    from benchmarks.observers import plugins

    return plugins(mode)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", dest="plugins", type=_plugins, default=())
    parser.add_argument("schema")
    parser.add_argument("queues", nargs="+")
    asyncio.run(serve(**vars(parser.parse_args())))
