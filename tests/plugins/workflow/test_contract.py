"""The plugin keeps the contract of plugins."""

from __future__ import annotations

import pytest

from chancy import Plugin
from chancy.plugins.workflow import Workflows
from chancy.testing.plugin import PluginContract


class TestWorkflows(PluginContract):
    @pytest.fixture
    def plugin(self) -> Plugin:
        return Workflows()

    @pytest.fixture
    def plugin_dsn(self, empty_dsn: str) -> str:
        return empty_dsn
