"""What a child is told at its start. Without asyncio, which most children do without."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildSettings:
    """What a child is told at its start.

    :param calls: descriptor of its end of the channel.
    :param max_payload: bytes that an encoded result may have.
    :param jobs: coroutine jobs at a time.
    :param initializer: path of a function to be called first.
    :param log_level: the least level of records that the parent would log.
    :param completion: the two of a `CompletionRef`.
    """

    calls: int
    max_payload: int
    jobs: int = 1
    initializer: str | None = None
    log_level: int = logging.WARNING
    completion: Sequence[str] | None = None
