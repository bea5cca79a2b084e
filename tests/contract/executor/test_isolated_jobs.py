"""Jobs in an executor process for quarantined jobs."""

from __future__ import annotations

from chancy.attempt.claim import Claim
from chancy.context.host import Progress
from chancy.executors.base import AttemptCallbacks
from chancy.executors.setup import ExecutorSetup, make_executor
from chancy.job.registry import Registry
from chancy.queue.executor_options import ProcessOptions
from chancy.worker.isolated_loop import environment_of
from tests.contract.executor import isolated_jobs
from tests.contract.executor.calls import claim_with
from tests.contract.executor.test_checkpoints import Store, value_of


async def test_a_job_stores_nothing_in_the_job_after_it() -> None:
    store, reports = Store(), list[Progress]()

    def report(claim: Claim, progress: Progress) -> None:
        reports.append(progress)

    setup = ExecutorSetup(
        concurrency=1,
        find=Registry(allow=["tests.*"]).find,
        callbacks=AttemptCallbacks(report=report, store=store.keep),
        options=ProcessOptions(),
        environment=environment_of(isolated_jobs.application, "async", None),
    )
    it = make_executor("process", setup)
    await it.start()
    try:
        module = isolated_jobs.__name__
        await it.run(claim_with(f"{module}.leave_a_checkpoint", "{}"))
        outcome = await it.run(claim_with(f"{module}.let_it_run", "{}"))
        assert value_of(outcome) == "LeaseLost"
        assert (store.kept, reports) == ([], [])
    finally:
        await it.stop()
