"""Resets the functions of jobs before each test."""

from __future__ import annotations

import pytest

from tests.plugins.batch import jobs


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    jobs.clear()
