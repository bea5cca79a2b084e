"""The totals of the demo: as the finished jobs say, and computed without a queue."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any
from uuid import UUID

from chancy.cli.demo import jobs
from chancy.job.definition import Job, QueuedJob
from chancy.states import State


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """What is checked. ``deepest``: statements inside of each other."""

    modules_parsed: int
    modules_read: int
    lines: int
    functions: int
    classes: int
    deepest: int
    bytes: int
    hash_of_hashes: str
    retried: int
    failed: int

    def differences(self, other: Totals) -> list[str]:
        """The names of the totals that are not the same."""
        return [
            one.name for one in fields(self) if getattr(self, one.name) != getattr(other, one.name)
        ]


def of_jobs(finished: Mapping[UUID, QueuedJob]) -> Totals:
    """The totals of what the jobs returned, as the database has it."""
    done = [one for one in finished.values() if one.state is State.SUCCEEDED]
    return _totals(
        {_path(one): one.result for one in done if one.queue == "parse"},
        {_path(one): one.result for one in done if one.queue == "read"},
        retried=sum(bool(one.errors) for one in done),
        failed=sum(one.state is not State.SUCCEEDED for one in finished.values()),
    )


def directly(modules: Iterable[Path], pushed: Sequence[Job]) -> Totals:
    """The same totals, computed in this process from the files alone."""
    sources = {str(path): path.read_bytes() for path in modules}
    return _totals(
        {path: jobs.measure(source) for path, source in sources.items()},
        {path: jobs.content(source) for path, source in sources.items()},
        retried=sum("fails_once" in job.arguments for job in pushed),
        failed=1,
    )


def _path(one: QueuedJob) -> str:
    return str((one.arguments or {}).get("path"))


def _totals(
    measures: Mapping[str, Any], contents: Mapping[str, Any], *, retried: int, failed: int
) -> Totals:
    hashes = "\n".join(f"{path} {contents[path]['sha256']}" for path in sorted(contents))
    return Totals(
        modules_parsed=len(measures),
        modules_read=len(contents),
        lines=sum(one["lines"] for one in measures.values()),
        functions=sum(one["functions"] for one in measures.values()),
        classes=sum(one["classes"] for one in measures.values()),
        deepest=max((one["depth"] for one in measures.values()), default=0),
        bytes=sum(one["bytes"] for one in contents.values()),
        hash_of_hashes=hashlib.sha256(hashes.encode()).hexdigest()[:16],
        retried=retried,
        failed=failed,
    )
