"""Jobs that log."""

from __future__ import annotations

import logging

from chancy import Chancy, current_job, job
from chancy.plugins.job_logs import JobLogs


def application() -> Chancy:
    return Chancy(plugins=[JobLogs()])


@job(queue="looped", max_attempts=2)
async def in_loop(fails: bool = False) -> None:
    current_job().log(f"begun, {current_job().attempt}")
    current_job().log("not stored", logging.DEBUG)
    if fails and current_job().attempt == 1:
        raise ValueError("again")


@job(queue="threaded")
def in_thread() -> None:
    current_job().log("a\u0000b\nc")


@job(queue="forked")
def in_process() -> None:
    current_job().log("from a child", logging.ERROR)
    current_job().log("and more")
