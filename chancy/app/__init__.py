"""The application: pushes jobs, and queries them."""

from __future__ import annotations

from chancy.app.app import Chancy

__all__ = ["Chancy"]
