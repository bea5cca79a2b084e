"""The totals of the demo: from the finished jobs, and computed without a queue."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

from chancy.cli.demo import jobs
from chancy.job.definition import Job, QueuedJob
from chancy.states import State


def of_jobs(finished: Mapping[UUID, QueuedJob]) -> dict[str, int | str]:
    """The totals of the results that the jobs stored."""
    done = [job for job in finished.values() if job.state is State.SUCCEEDED]
    return _totals(
        {_path(job): job.result for job in done if job.queue == "parse"},
        {_path(job): job.result for job in done if job.queue == "read"},
        retried=sum(bool(job.errors) for job in done),
        failed=sum(job.state is not State.SUCCEEDED for job in finished.values()),
    )


def directly(modules: Iterable[Path], pushed: Sequence[Job]) -> dict[str, int | str]:
    """The same totals, computed in this process from the files alone."""
    sources = {str(path): path.read_bytes() for path in modules}
    return _totals(
        {path: jobs.measure(source) for path, source in sources.items()},
        {path: jobs.content(source) for path, source in sources.items()},
        retried=sum("fails_once" in job.arguments for job in pushed),
        failed=1,
    )


def _path(job: QueuedJob) -> str:
    return str((job.arguments or {}).get("path"))


def _totals(
    measures: Mapping[str, Any], contents: Mapping[str, Any], *, retried: int, failed: int
) -> dict[str, int | str]:
    hashes = "\n".join(f"{path} {contents[path]['sha256']}" for path in sorted(contents))
    return {
        "modules parsed": len(measures),
        "modules read": len(contents),
        "lines": sum(measure["lines"] for measure in measures.values()),
        "functions": sum(measure["functions"] for measure in measures.values()),
        "classes": sum(measure["classes"] for measure in measures.values()),
        "deepest": max((measure["depth"] for measure in measures.values()), default=0),
        "bytes": sum(content["bytes"] for content in contents.values()),
        "hash of hashes": hashlib.sha256(hashes.encode()).hexdigest()[:16],
        "retried": retried,
        "failed": failed,
    }
