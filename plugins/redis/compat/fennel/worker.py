"""``start``: a worker in this process."""

from __future__ import annotations

from typing import Literal

from chancy.cli.serving import Orders, run
from chancy.plugins.redis.compat.fennel.application import App

EXIT_SIGNAL: Literal["signal"] = "signal"
EXIT_COMPLETE: Literal["complete"] = "complete"


def start(
    app: App,
    exit: Literal["signal", "complete"] = EXIT_SIGNAL,  # noqa: A002 - the name is fennel's
) -> None:
    """Serve the queue of an application until SIGINT or SIGTERM.

    One worker, in the main thread; ``chancy worker --processes`` runs more of them.

    :param exit: `EXIT_COMPLETE`: until the queue is empty.
    """
    ours = app.settings
    run(
        app(),
        Orders(
            queues=(app.name,),
            processors=None,
            tags=(),
            burst=exit == EXIT_COMPLETE,
            shutdown_timeout=ours.grace_period,
            heartbeat=min(ours.heartbeat_interval, ours.heartbeat_timeout / 3),
            heartbeat_timeout=ours.heartbeat_timeout,
            log_level="info",
            log_format="text",
        ),
    )
