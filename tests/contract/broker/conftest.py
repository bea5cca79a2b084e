"""Makes the assertions of the contract as readable as those of a test module."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("chancy.testing.conformance", "tests.contract.broker.machine")


@pytest.fixture(scope="session")
def template(shipped_template: str) -> str:
    """The broker gives the queue ``default`` as it is shipped."""
    return shipped_template
