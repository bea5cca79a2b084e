"""Resets the functions of steps before each test."""

from __future__ import annotations

import asyncio

import pytest

from tests.plugins.batch import jobs
from tests.plugins.workflow import steps


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    steps.ran.clear()
    steps.failing.clear()
    steps.gate = asyncio.Event()
    jobs.clear()
