"""Fixtures for pytest, registered by an entry point wherever chancy is installed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from chancy.app.app import Chancy
    from chancy.testing.sandbox import Sandbox


@pytest.fixture
def chancy_app() -> Chancy:
    """The application under test. Override this fixture in a ``conftest.py``."""
    raise pytest.UsageError(
        "chancy_sandbox needs your application: define a fixture chancy_app in conftest.py that "
        "returns it"
    )


@pytest.fixture
def chancy_sandbox(chancy_app: Chancy) -> Iterator[Sandbox]:
    """The application without its database, for one test; see `chancy.testing.sandbox.Sandbox`."""
    from chancy.testing.sandbox import Sandbox

    with Sandbox(chancy_app) as sandbox:
        yield sandbox
