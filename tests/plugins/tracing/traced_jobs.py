"""Jobs that return the span that is current in them."""

from __future__ import annotations

import threading
import time

from opentelemetry import trace

from chancy import current_job, job


def here() -> str:
    span = trace.get_current_span().get_span_context()
    return f"{span.trace_id:032x} {span.span_id:016x} {span.trace_flags:02x}"


@job(queue="looped")
async def in_loop(fails: int = 0) -> str:
    if current_job().attempt <= fails:
        raise KeyError("nothing there")
    return here()


@job(queue="threaded")
def in_thread() -> str:
    return here()


broken = threading.Event()


@job(queue="threaded", max_attempts=1)
def in_thread_until_repaired() -> str:
    if broken.is_set():
        raise KeyError(here())
    return here()


begun = threading.Event()


@job(queue="threaded")
def until_cancelled() -> None:
    begun.set()
    while not current_job().cancelled:
        time.sleep(0.01)


@job(queue="forked", max_attempts=1)
def in_process(fails: bool = False) -> str:
    if fails:
        raise KeyError(here())
    return here()
