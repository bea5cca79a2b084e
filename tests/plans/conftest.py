"""Databases without a past, which sizes and statistics would show."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def recycled() -> bool:
    return False
