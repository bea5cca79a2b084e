"""What must be there for a test to go on."""

from __future__ import annotations

from typing import TypeVar

Found = TypeVar("Found")


def present(found: Found | None) -> Found:
    """What was found, which is not None."""
    assert found is not None
    return found
