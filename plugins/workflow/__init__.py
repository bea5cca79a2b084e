"""Workflows: graphs of steps, each of which may take the results of steps before it.

Names are imported on first use, because every application has the plugin, but few have workflows.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chancy.plugins.workflow.description import Workflow, chain, chord, group
    from chancy.plugins.workflow.record import (
        StepRecord,
        StepState,
        WorkflowFilter,
        WorkflowProgress,
        WorkflowRecord,
        WorkflowState,
    )
    from chancy.plugins.workflow.reference import WorkflowFailed, WorkflowReference
    from chancy.plugins.workflow.sources import Each, From
    from chancy.plugins.workflow.step import OnFailure, Step
    from chancy.plugins.workflow.workflows import Workflows

__all__ = [
    "Each",
    "From",
    "OnFailure",
    "Step",
    "StepRecord",
    "StepState",
    "Workflow",
    "WorkflowFailed",
    "WorkflowFilter",
    "WorkflowProgress",
    "WorkflowRecord",
    "WorkflowReference",
    "WorkflowState",
    "Workflows",
    "chain",
    "chord",
    "group",
]

#: The names of each module.
_NAMES = {
    "description": "Workflow chain chord group",
    "record": "StepRecord StepState WorkflowFilter WorkflowProgress WorkflowRecord WorkflowState",
    "reference": "WorkflowFailed WorkflowReference",
    "sources": "Each From",
    "step": "OnFailure Step",
    "workflows": "Workflows",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'chancy.plugins.workflow' has no attribute {name!r}")
    found = import_module(f"chancy.plugins.workflow.{_MODULES[name]}")
    value = globals()[name] = getattr(found, name)
    return value


def __dir__() -> list[str]:
    return __all__
