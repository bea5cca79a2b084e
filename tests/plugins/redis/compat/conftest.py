"""Servers for programs with streams, and a program of fennel."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.plugins.redis.compat.fennel_worker import Shop, opened
from tests.plugins.redis.streams.conftest import place

__all__ = ["place", "shop"]


@pytest.fixture
def shop(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    dsn: str,
    redis_url: str,
) -> Iterator[Shop]:
    """The program with the settings of the module and of `with_settings`."""
    settings: dict[str, str] = getattr(request.module, "SETTINGS", {})
    settings = settings | getattr(request, "param", {})
    yield from opened(monkeypatch, tmp_path, dsn, redis_url, **settings)
