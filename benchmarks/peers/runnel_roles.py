# pyright: reportMissingImports=false, reportUntypedFunctionDecorator=false
"""The sender and worker roles of runnel: ``PYTHON runnel_roles.py ROLE URL EVENTS [CHUNK]``.

Run it with an interpreter that has runnel installed. It imports nothing of chancy.
"""

from __future__ import annotations

import asyncio
import json
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


async def send(url: str, events: int, chunk: int) -> dict[str, float]:
    _, stream = declare(url)
    await stream.send(Noop(i=0))
    began = time.perf_counter()
    for at in range(0, events, chunk):
        await stream.send(*[Noop(i=i) for i in range(at, min(events, at + chunk))])
    took = time.perf_counter() - began
    return {"rate": events / took, "cpu_us": time.process_time() / events * 1e6}


def work(url: str, events: int, chunk: int) -> None:
    from runnel.worker import Worker

    app, stream = declare(url)
    state: Any = {"count": 0, "first": 0.0, "cpu": 0.0}

    def note(number: int) -> None:
        if not state["count"]:
            state["first"], state["cpu"] = time.perf_counter(), time.process_time()
        state["count"] += number
        if state["count"] >= events:
            took = time.perf_counter() - state["first"]
            cpu = (time.process_time() - state["cpu"]) / events * 1e6
            print(json.dumps({"rate": events / took, "cpu_us": cpu}), flush=True)
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


def main(role: str, url: str, events: str, chunk: str = "500") -> None:
    if role == "work":
        work(url, int(events), int(chunk))
    elif role == "send_single":
        print(json.dumps(asyncio.run(send(url, int(events), 1))), flush=True)
    else:
        print(json.dumps(asyncio.run(send(url, int(events), int(chunk)))), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
