"""Databases with the tables of workflows, and of batches."""

from __future__ import annotations

import asyncio
import logging
import random

import pytest

from chancy import Chancy
from chancy.plugins.batch import Batches
from chancy.plugins.workflow import Workflows
from tests.workflow import batch_jobs, steps
from tests.workflow.fleet import SEED

logger = logging.getLogger("tests.workflow")


@pytest.fixture
def flows_dsn(dsn: str) -> str:
    Chancy(dsn, plugins=[Workflows()]).sync_migrate()
    return dsn


@pytest.fixture
def batches_dsn(dsn: str) -> str:
    Chancy(dsn, plugins=[Batches()]).sync_migrate()
    return dsn


@pytest.fixture
def chance() -> random.Random:
    """Of a seed that is shown when a test fails."""
    logger.warning("CHANCY_TEST_SEED=%d", SEED)
    return random.Random(SEED)


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    steps.ran.clear()
    steps.failing.clear()
    steps.gate = asyncio.Event()
    batch_jobs.ran.clear()
    batch_jobs.failing.clear()
    batch_jobs.apps.clear()
    batch_jobs.gate = asyncio.Event()
