"""A client process that pushes jobs from a generator: ``python -m benchmarks.client``.

Arguments: SCHEMA QUEUE COUNT. Reads the DSN from CHANCY_DSN. Prints one JSON object: its peak
memory before and after the push in MB, and the seconds of the push.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time
from pathlib import Path

from benchmarks.jobs import noop
from chancy import Chancy


async def push(schema: str, queue: str, count: int) -> dict[str, float]:
    make = noop.job.with_queue(queue)
    async with Chancy(schema=schema) as app:
        await app.push_many([make(number=0)])
        before_mb, started = _peak_mb(), time.perf_counter()
        references = await app.push_many(make(number=number) for number in range(count))
        seconds = time.perf_counter() - started
        assert len(references) == count
        return {"before_mb": before_mb, "peak_mb": _peak_mb(), "seconds": seconds}


def _peak_mb() -> float:
    try:
        # On Linux getrusage is not usable: it starts with the memory of the parent process.
        status = Path("/proc/self/status").read_text()
    except FileNotFoundError:
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most / (1024 * 1024 if sys.platform == "darwin" else 1024)
    return next(int(line.split()[1]) for line in status.splitlines() if "VmHWM" in line) / 1024


if __name__ == "__main__":
    schema, queue, count = sys.argv[1:]
    print(json.dumps(asyncio.run(push(schema, queue, int(count)))))
