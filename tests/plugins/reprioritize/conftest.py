"""Databases with the tables of the plugin."""

from __future__ import annotations

from datetime import timedelta

import pytest

from chancy.plugins.reprioritize import Aging, Reprioritize
from tests.support.postgres_fixtures import template_with


@pytest.fixture(scope="session")
def template(pytestconfig: pytest.Config, template: str) -> str:
    plugin = Reprioritize(rules=[Aging(every=timedelta(minutes=1))])
    return template_with(pytestconfig, template, plugin)
