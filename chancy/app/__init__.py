"""The application: pushes jobs, and answers questions about them."""

from __future__ import annotations

from chancy.app.app import Chancy

__all__ = ["Chancy"]
