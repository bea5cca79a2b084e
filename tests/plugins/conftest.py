"""Databases with the tables of plugins, and a source of chance."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from chancy.plugins.batch import Batches
from chancy.plugins.workflow import Workflows
from tests.plugins.workflow.fleet import SEED
from tests.support.postgres_fixtures import _database, find_run, template_with

# Makes the assertions of the contract as readable as those of a test module.
pytest.register_assert_rewrite("chancy.testing.plugin")

logger = logging.getLogger("tests.plugins")


@pytest.fixture(autouse=True)
def soon_promoted(frequent_promotion: None) -> None:
    """See `tests.conftest`."""


@pytest.fixture(scope="session")
def flows_template(pytestconfig: pytest.Config, template: str) -> str:
    return template_with(pytestconfig, template, Workflows())


@pytest.fixture
def flows_dsn(request: pytest.FixtureRequest, flows_template: str) -> Iterator[str]:
    """As `dsn`, with the tables of workflows."""
    with _database(find_run(request.config), request, flows_template) as name:
        yield name


@pytest.fixture(scope="session")
def batches_template(pytestconfig: pytest.Config, template: str) -> str:
    return template_with(pytestconfig, template, Batches())


@pytest.fixture
def batches_dsn(request: pytest.FixtureRequest, batches_template: str) -> Iterator[str]:
    """As `dsn`, with the tables of batches."""
    with _database(find_run(request.config), request, batches_template) as name:
        yield name


@pytest.fixture
def connection(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    """A session in autocommit mode."""
    with psycopg.connect(dsn, autocommit=True) as made:
        yield made


@pytest.fixture
def chance() -> random.Random:
    """Of a seed that is shown when a test fails."""
    logger.warning("CHANCY_TEST_SEED=%d", SEED)
    return random.Random(SEED)
