"""Databases with the tables of workflows, and of batches."""

from __future__ import annotations

import asyncio

import pytest

from chancy import Chancy
from chancy.plugins.batch import Batches
from chancy.plugins.workflow import Workflows
from tests.workflow import batch_jobs, steps


@pytest.fixture
def flows_dsn(dsn: str) -> str:
    Chancy(dsn, plugins=[Workflows()]).sync_migrate()
    return dsn


@pytest.fixture
def batches_dsn(dsn: str) -> str:
    Chancy(dsn, plugins=[Batches()]).sync_migrate()
    return dsn


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    steps.ran.clear()
    steps.failing.clear()
    steps.gate = asyncio.Event()
    batch_jobs.ran.clear()
    batch_jobs.failing.clear()
    batch_jobs.apps.clear()
    batch_jobs.gate = asyncio.Event()
