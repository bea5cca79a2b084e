"""Fixtures of every tier. A test that needs Postgres asks for one of `tests.postgres_fixtures`."""

from __future__ import annotations

import gc

pytest_plugins = ["tests.leftovers", "tests.postgres_fixtures", "tests.redis_fixtures"]


def pytest_collection_finish() -> None:
    """Thousands of collected tests are garbage of nobody: walking them took a twelfth of the CPU
    time of the processes that run tests."""
    gc.collect()
    gc.freeze()
