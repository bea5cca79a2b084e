"""Databases with the tables of workflows."""

from __future__ import annotations

import asyncio

import pytest

from chancy import Chancy
from chancy.plugins.workflow import Workflows
from tests.workflow import steps


@pytest.fixture
def flows_dsn(dsn: str) -> str:
    Chancy(dsn, plugins=[Workflows()]).sync_migrate()
    return dsn


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    steps.ran.clear()
    steps.failing.clear()
    steps.gate = asyncio.Event()
