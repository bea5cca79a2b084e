"""No jobs are left over from the test before."""

from __future__ import annotations

import pytest

from tests.plugins.batch import jobs


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    jobs.clear()
