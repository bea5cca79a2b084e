"""A program of pytask: ``python -m tests.plugins.redis.compat.pytask_shop URL``.

It is one as its users have written them; only the imports are others.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Generator
from typing import Any

from redis import Redis

from chancy.plugins.redis.compat.pytask import Cleanup, Monitor, PyTask, Task, run_loop


class Loop(Task):
    NAME = "loop"

    def __init__(self, step: float = 0.02, text: str = "tick") -> None:
        self.step = step
        self.text = text

    @staticmethod
    @contextlib.contextmanager
    def provide_context() -> Generator[None]:
        yield

    def start(self) -> None:
        run_loop(self.tick, self.step)

    def tick(self) -> None:
        untyped: Any = self.redis
        untyped.rpush(f"heard:{self.context.id}", self.text)

    def stop(self) -> None:
        untyped: Any = self.redis
        untyped.rpush(f"heard:{self.context.id}", "stopping")


class Sleeper(Task):
    """Ignores the stop request, and is interrupted."""

    NAME = "sleeper"

    def start(self) -> None:
        while True:
            time.sleep(0.01)


class Once(Task):
    NAME = "once"

    def __init__(self, fail: str = "") -> None:
        self.fail = fail

    def start(self) -> dict[str, list[int]]:
        if self.fail:
            raise self.Error(self.fail)
        self.emit("news", {"a": 1})
        return {"done": [1]}


def ended(task_id: str, task_hash: dict[str, str]) -> None:
    Redis.from_url(sys.argv[1]).set(f"ended:{task_id}", task_hash["state"])


def application(client: Any, **names: Any) -> PyTask:
    app = PyTask(client, update_task_interval=3, **names)
    app.add_tasks(Loop, Sleeper, Once, Monitor)
    app.add_task(Cleanup)
    return app


if __name__ == "__main__":
    app = application(Redis.from_url(sys.argv[1]))
    app.start_local_task("pytask/monitor", loop_interval=0.2, task_timeout=1)
    app.start_local_task("pytask/cleanup", task_handler="__main__:ended")
    app.run()
