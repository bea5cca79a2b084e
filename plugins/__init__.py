"""The policies that ship with chancy, each a plugin."""

from __future__ import annotations

from chancy.plugin.plugin import Plugin
from chancy.plugins.dead_letter import DeadLetters
from chancy.plugins.leadership import Leadership
from chancy.plugins.pruner import Pruner
from chancy.plugins.recovery import Recovery
from chancy.plugins.retry import Retries


def standard() -> list[Plugin]:
    """The plugins that an application has unless it says otherwise."""
    return [Leadership(), Retries(), Recovery(), DeadLetters(), Pruner()]
