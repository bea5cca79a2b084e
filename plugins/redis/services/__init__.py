"""Long-lived services over Redis: one instance each, with start, stop, reload and restart."""

from __future__ import annotations

from chancy.plugins.redis.services.base import (
    BlockingContext,
    Context,
    Listing,
    Service,
    ServiceError,
    ServiceReport,
    ServiceState,
    UnknownService,
)
from chancy.plugins.redis.services.client import NoService, ServiceRuns, ServiceStore
from chancy.plugins.redis.services.services import Services
from chancy.plugins.redis.services.standalone import run, serve

__all__ = [
    "BlockingContext",
    "Context",
    "Listing",
    "NoService",
    "Service",
    "ServiceError",
    "ServiceReport",
    "ServiceRuns",
    "ServiceState",
    "ServiceStore",
    "Services",
    "UnknownService",
    "run",
    "serve",
]
