"""``start``: a worker in this process."""

from __future__ import annotations

import logging
from typing import Literal

from chancy.cli import logs
from chancy.cli.serving import UNKNOWN_AFTER_S, ServeOptions, run
from chancy.plugins.redis.compat.fennel.application import App

EXIT_SIGNAL: Literal["signal"] = "signal"
EXIT_COMPLETE: Literal["complete"] = "complete"


def start(
    app: App,
    exit: Literal["signal", "complete"] = EXIT_SIGNAL,  # noqa: A002 - the name is fennel's
) -> None:
    """Serve the queue of an application with its settings, until SIGINT or SIGTERM.

    Runs one worker in the main thread: the setting ``processes`` applies to the command line. It
    logs to stderr, unless the program has its own log handlers.

    :param exit: `EXIT_COMPLETE` runs until the queue is empty.
    """
    options = options_of(app, burst=exit == EXIT_COMPLETE)
    if not logging.getLogger().handlers:
        logs.install(options.log_level, options.log_format)
    run(app(), options)


def options_of(app: App, *, burst: bool = False, concurrency: int | None = None) -> ServeOptions:
    """The options of a worker for the settings of an application.

    :param concurrency: overrides the setting.
    """
    settings = app.settings
    most = concurrency or settings.concurrency
    ahead = None if settings.prefetch_count is None else most * (settings.prefetch_count - 1)
    return ServeOptions(
        queues=(app.name,),
        processors=None,
        tags=(),
        concurrency=most,
        prefetch_limit=ahead,
        unknown_after=UNKNOWN_AFTER_S,
        burst=burst,
        shutdown_timeout=settings.grace_period,
        heartbeat=min(settings.heartbeat_interval, settings.heartbeat_timeout / 3),
        heartbeat_timeout=settings.heartbeat_timeout,
        # The highest level of a worker is error.
        log_level="error" if settings.log_level == "critical" else settings.log_level,
        log_format="json" if settings.log_format == "json" else "text",
    )
