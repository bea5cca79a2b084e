"""Workers of these tests promote often."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def soon_promoted(frequent_promotion: None) -> None:
    """See `tests.conftest`."""
