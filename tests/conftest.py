"""Fixtures of every tier. A test that needs Postgres asks for one of `tests.postgres_fixtures`."""

from __future__ import annotations

pytest_plugins = ["tests.leftovers", "tests.postgres_fixtures", "tests.redis_fixtures"]
