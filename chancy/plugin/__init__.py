"""The plugin interface: the base class, its hooks, and the types that plugins use."""

from __future__ import annotations

from chancy.plugin.leader import LeaderGate, Unelected, elected
from chancy.plugin.plugin import Plugin
from chancy.plugin.runtime import Application, BrokerContext, CommandLine, Panel, Runtime

__all__ = [
    "Application",
    "BrokerContext",
    "CommandLine",
    "LeaderGate",
    "Panel",
    "Plugin",
    "Runtime",
    "Unelected",
    "elected",
]
