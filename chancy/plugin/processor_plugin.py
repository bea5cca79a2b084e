"""Plugins whose service runs processors."""

from __future__ import annotations

from collections.abc import Collection

from chancy.plugin.plugin import Plugin


class ProcessorPlugin(Plugin):
    """A plugin whose `serve` runs processors, which ``chancy worker --processors`` selects."""

    def choose(self, processors: Collection[str]) -> Collection[str]:
        """Select the processors that `serve` runs.

        Returns the names of all processors that the plugin has.
        """
        raise NotImplementedError

    @property
    def exit_code(self) -> int:
        """The exit code of ``chancy worker`` if a processor stopped it, else 0."""
        raise NotImplementedError
