"""Workflows as a dashboard lists them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from chancy.plugin.runtime import Application
from chancy.plugins.workflow.flows import WorkflowCalls, WorkflowFilter


async def rows(chancy: Application) -> Sequence[Mapping[str, Any]]:
    """The newest ones."""
    found = await WorkflowCalls(chancy.broker).find(WorkflowFilter(limit=100))
    return [
        {
            "id": str(one.id),
            "name": one.name,
            "state": one.state.label,
            "steps": one.steps,
            "error": one.error,
            "pushed_at": one.pushed_at.isoformat(),
            "finished_at": one.finished_at and one.finished_at.isoformat(),
        }
        for one in found
    ]
