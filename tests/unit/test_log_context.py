"""Handlers that send records to another process."""

from __future__ import annotations

import logging
import threading

import pytest

from chancy.log_context import UnlockedHandler


class _List(UnlockedHandler):
    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


@pytest.fixture
def handler() -> _List:
    return _List()


def record(message: str) -> logging.LogRecord:
    return logging.LogRecord("shop", logging.INFO, "x.py", 1, message, (), None)


def test_handler_without_a_lock_logs_while_another_thread_is_inside_it(handler: _List) -> None:
    handler.acquire()
    try:
        thread = threading.Thread(target=handler.handle, args=(record("sent"),), daemon=True)
        thread.start()
        thread.join(10.0)
        assert handler.messages == ["sent"]
    finally:
        handler.release()


def test_handler_without_a_lock_applies_its_filters(handler: _List) -> None:
    handler.addFilter(lambda record: record.getMessage() != "dropped")
    assert not handler.handle(record("dropped"))
    assert handler.handle(record("kept"))
    assert handler.messages == ["kept"]
