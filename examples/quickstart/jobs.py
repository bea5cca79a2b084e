"""An application: two jobs, and the queue that one of them waits in. The DSN is in CHANCY_DSN."""

import asyncio

from chancy import Chancy, Queue, job

chancy = Chancy(queues=[Queue(name="mail", executor="async", concurrency=20)])


@job
def add(a: int, b: int) -> int:
    return a + b


@job(queue="mail", max_attempts=5)
async def greet(name: str) -> str:
    await asyncio.sleep(0.01)  # as a mail server would take its time
    return f"Hello, {name}!"
