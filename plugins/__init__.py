"""The plugins that ship with chancy, and the default set of an application."""

from __future__ import annotations

from chancy.plugin.plugin import Plugin
from chancy.plugins.cron import Cron
from chancy.plugins.dead_letter import DeadLetters
from chancy.plugins.leadership import Leadership
from chancy.plugins.limits import GlobalLimits
from chancy.plugins.pruner import Pruner
from chancy.plugins.recovery import Recovery
from chancy.plugins.retry import Retries
from chancy.plugins.workflow.workflows import Workflows


def standard() -> list[Plugin]:
    """The default plugins of an application."""
    return [
        Leadership(),
        Retries(),
        Recovery(),
        DeadLetters(),
        Pruner(),
        GlobalLimits(),
        Cron(),
        Workflows(),
    ]
