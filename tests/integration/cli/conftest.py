"""Databases of the commands."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def template(shipped_template: str) -> str:
    """Commands start workers of the queue ``default`` as it is shipped."""
    return shipped_template
