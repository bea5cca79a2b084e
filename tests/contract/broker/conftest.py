"""Makes the assertions of the contract as readable as those of a test module."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("chancy.testing.conformance", "tests.contract.broker.machine")
