"""Settings of an executor process. Imports no asyncio, which most of these processes never need."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildSettings:
    """Settings that an executor process gets at its start.

    :param calls: descriptor of its end of the channel.
    :param max_payload: maximum size of an encoded result in bytes.
    :param jobs: number of coroutine jobs to run at a time.
    :param initializer: path of a function to call first.
    :param log_level: lowest level of records that the worker logs.
    :param completion: the two fields of a `CompletionRef`.
    """

    calls: int
    max_payload: int
    jobs: int = 1
    initializer: str | None = None
    log_level: int = logging.WARNING
    completion: Sequence[str] | None = None
