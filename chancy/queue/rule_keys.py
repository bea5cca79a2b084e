"""Warns about functions that lack the argument by which a rule of their queue counts."""

from __future__ import annotations

import logging

from chancy.job.definition import DECORATED
from chancy.queue.queue import Queue
from chancy.serialization.signature import Signature
from chancy.text import nearest

logger = logging.getLogger("chancy.rules")

#: Values of ``by`` that are not paths into the arguments.
_NO_PATHS = (None, "func", "key")
#: The maximum number of functions and rules about which a process warns.
_MAX_WARNED = 1_000

#: The queues, functions and paths about which this process has warned.
_warned: set[tuple[str, str, str]] = set()


def warn_of_missing_keys(queue: Queue, signature: Signature) -> None:
    """Log once the partition keys of a queue for which a function has no parameter.

    All of its jobs would be in one partition. A queue may intentionally have such functions, so the
    job is not refused.
    """
    for rule in queue.rules:
        if rule.by is None or rule.by in _NO_PATHS:
            continue
        name = rule.by.partition(".")[0]
        warned = (queue.name, signature.path, rule.by)
        if signature.takes(name) or warned in _warned or len(_warned) >= _MAX_WARNED:
            continue
        _warned.add(warned)
        logger.warning(
            "rule_key_missing queue=%s rule=%s by=%s func=%s nearest=%s",
            queue.name,
            type(rule).__name__,
            rule.by,
            signature.path,
            nearest(name, signature.parameter_names),
        )


def warn_of_functions(queue: Queue) -> None:
    """`warn_of_missing_keys` for each decorated function that names the queue."""
    if queue.rules:
        for path, function in tuple(DECORATED.items()):
            template = getattr(getattr(function, "job", None), "template", None)
            if template is not None and template.queue == queue.name:
                warn_of_missing_keys(queue, Signature.of(function, path))
