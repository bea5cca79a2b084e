"""Fixtures of every tier. Those of servers are in `tests.support`."""

from __future__ import annotations

import gc

pytest_plugins = [
    "tests.support.leftovers",
    "tests.support.postgres_fixtures",
    "tests.support.redis_fixtures",
]


def pytest_collection_finish() -> None:
    """Thousands of collected tests are garbage of nobody: walking them took a twelfth of the CPU
    time of the processes that run tests."""
    gc.collect()
    gc.freeze()
