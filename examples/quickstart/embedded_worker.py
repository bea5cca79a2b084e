"""A worker inside a program of yours, until SIGTERM or Ctrl-C."""

import asyncio

import jobs

from chancy import Chancy, Worker


async def main() -> None:
    async with Chancy("postgresql://localhost") as chancy:
        async with Worker(chancy) as worker:
            print(
                f"a worker of {jobs.add.__module__}.py serves {', '.join(worker.queues)}",
                flush=True,
            )
            await worker.wait_for_shutdown()
    print("the worker has stopped")


asyncio.run(main())
