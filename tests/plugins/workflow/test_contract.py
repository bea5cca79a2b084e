"""The plugin keeps the contract of plugins."""

from __future__ import annotations

import pytest

from chancy import Plugin
from chancy.plugins.workflow import Workflows
from tests.contract.plugin.test_plugin import OnTables


class TestWorkflows(OnTables):
    @pytest.fixture
    def plugin(self) -> Plugin:
        return Workflows()
