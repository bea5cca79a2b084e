# pyright: reportMissingImports=false, reportUntypedFunctionDecorator=false
"""The sender and worker roles of runnel: ``PYTHON runnel_roles.py ROLE URL EVENTS CHUNK``.

Run it with an interpreter that has runnel installed. It imports nothing of chancy.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from typing import Any

from runnel import App, Record


class Noop(Record):  # type: ignore[misc]
    i: int


def declare(url: str) -> tuple[Any, Any]:
    app = App(name="bench", redis_url=url, log_level="critical")
    return app, app.stream("noop", record=Noop, partition_by="i", partition_size=10_000_000)


async def send(url: str, events: int, chunk: int) -> None:
    _, stream = declare(url)
    await stream.send(Noop(i=0))
    began = time.perf_counter()
    for at in range(0, events, chunk):
        await stream.send(*[Noop(i=i) for i in range(at, min(events, at + chunk))])
    print(events / (time.perf_counter() - began), flush=True)


def work(url: str, events: int, chunk: int) -> None:
    from runnel.worker import Worker

    app, stream = declare(url)
    count = 0
    first = 0.0

    def note(number: int) -> None:
        nonlocal count, first
        first = first or time.perf_counter()
        count += number
        if count >= events:
            print(events / (time.perf_counter() - first), flush=True)
            os._exit(0)

    # 100: with the default of 8 it processes a third fewer. Neither delays the first event.
    @app.processor(stream, prefetch_count=max(100, chunk))  # type: ignore[untyped-decorator]
    async def noop(items: Any) -> None:
        if chunk > 1:
            async for batch in items.take(chunk, within=0.1).records():
                note(len(batch))
        else:
            async for _ in items.records():
                note(1)

    Worker(app).start()


if __name__ == "__main__":
    _role, _url, *_numbers = sys.argv[1:]
    _events, _chunk = map(int, _numbers)
    if _role == "work":
        work(_url, _events, _chunk)
    asyncio.run(send(_url, _events, _chunk))
    os._exit(0)
