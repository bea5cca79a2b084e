"""``start``: a worker in this process."""

from __future__ import annotations

import logging
from typing import Literal

from chancy.cli import logs
from chancy.cli.serving import ServeOptions, run
from chancy.plugins.redis.compat.fennel.application import App

EXIT_SIGNAL: Literal["signal"] = "signal"
EXIT_COMPLETE: Literal["complete"] = "complete"


def start(
    app: App,
    exit: Literal["signal", "complete"] = EXIT_SIGNAL,  # noqa: A002 - the name is fennel's
) -> None:
    """Serve the queue of an application, as its settings say, until SIGINT or SIGTERM.

    One worker, in the main thread: the setting ``processes`` is for the command line. What it logs
    goes to stderr, unless the program has handlers of its own.

    :param exit: `EXIT_COMPLETE`: until the queue is empty.
    """
    orders = orders_of(app, burst=exit == EXIT_COMPLETE)
    if not logging.getLogger().handlers:
        logs.install(orders.log_level, orders.log_format)
    run(app(), orders)


def orders_of(app: App, *, burst: bool = False, concurrency: int | None = None) -> ServeOptions:
    """The settings of an application as those of a worker.

    :param concurrency: instead of the setting.
    """
    ours = app.settings
    most = concurrency or ours.concurrency
    ahead = None if ours.prefetch_count is None else most * (ours.prefetch_count - 1)
    return ServeOptions(
        queues=(app.name,),
        processors=None,
        tags=(),
        concurrency=most,
        most_ahead=ahead,
        burst=burst,
        shutdown_timeout=ours.grace_period,
        heartbeat=min(ours.heartbeat_interval, ours.heartbeat_timeout / 3),
        heartbeat_timeout=ours.heartbeat_timeout,
        # A worker logs nothing above errors.
        log_level="error" if ours.log_level == "critical" else ours.log_level,
        log_format="json" if ours.log_format == "json" else "text",
    )
