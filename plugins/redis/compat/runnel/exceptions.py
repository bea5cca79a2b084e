"""Exceptions, at the import path of runnel."""

from __future__ import annotations

from chancy.errors import ChancyError as RunnelException
from chancy.errors import ConfigurationError as Misconfigured

__all__ = ["Misconfigured", "RunnelException"]
