"""Databases with the tables of plugins, and a source of chance."""

from __future__ import annotations

import logging
import random

import pytest

from chancy import Chancy
from chancy.plugins.batch import Batches
from chancy.plugins.workflow import Workflows
from tests.plugins.workflow.fleet import SEED

# Makes the assertions of the contract as readable as those of a test module.
pytest.register_assert_rewrite("chancy.testing.plugin")

logger = logging.getLogger("tests.plugins")


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
