"""Databases of the examples."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def template(shipped_template: str) -> str:
    """The pages describe the queue ``default`` as it is shipped."""
    return shipped_template
