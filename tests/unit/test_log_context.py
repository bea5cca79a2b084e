"""Handlers that send records to another process."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from chancy.cli import application
from chancy.executors import imports
from chancy.executors.process.child.dispatcher import Dispatcher
from chancy.executors.process.child.interrupts import Interrupter
from chancy.job.registry import Registry
from chancy.log_context import UnlockedHandler
from tests.unit.context.hosts import Ear


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


QUIET = """
import logging.config

logging.config.dictConfig({"version": 1})

def work(): ...
"""


@pytest.fixture
def quiet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a module whose import disables all loggers, with the function ``work``."""
    (tmp_path / "quiet_shop.py").write_text(QUIET)
    monkeypatch.syspath_prepend(str(tmp_path))
    logging.getLogger("shop").disabled = False
    found = dict(logging.root.manager.loggerDict).values()
    before = [(one, one.disabled) for one in found if isinstance(one, logging.Logger)]
    logging.getLogger("chancy.of_a_user").disabled = True
    yield "quiet_shop"
    sys.modules.pop("quiet_shop", None)
    for logger, disabled in before:
        logger.disabled = disabled


def check_loggers() -> None:
    assert "quiet_shop" in sys.modules
    assert logging.getLogger("shop").disabled
    assert not logging.getLogger("chancy.job").disabled
    assert logging.getLogger("chancy.of_a_user").disabled, "it was disabled before"


def test_an_application_that_is_imported_leaves_the_loggers_enabled(quiet: str) -> None:
    application.load(quiet, what="imports")
    check_loggers()


async def test_a_job_that_is_imported_leaves_the_loggers_enabled(quiet: str) -> None:
    await imports.load(f"{quiet}.work", Registry(["quiet_shop.*"]).find)
    check_loggers()


def test_a_job_of_an_executor_process_leaves_the_loggers_enabled(quiet: str) -> None:
    Dispatcher(1_000, Interrupter(), Ear(), None).find(f"{quiet}.work")
    check_loggers()


APPLICATION = """
import logging.config

from chancy import Chancy

chancy = Chancy("postgresql://localhost/nothing")
logging.config.dictConfig({"version": 1})
"""
LOAD = """
import logging

from chancy.cli import application

assert "chancy.attempts" not in logging.root.manager.loggerDict, "the import creates it"
application.find("quiet_app")
assert "chancy.attempts" in logging.root.manager.loggerDict
loggers = [one for one in logging.root.manager.loggerDict.values() if hasattr(one, "handlers")]
print([one.name for one in loggers if one.name.startswith("chancy.") and one.disabled])
"""


def test_an_application_leaves_the_loggers_enabled_that_its_import_creates(tmp_path: Path) -> None:
    (tmp_path / "quiet_app.py").write_text(APPLICATION)
    path = os.pathsep.join([str(tmp_path), *sys.path])
    ran = subprocess.run(
        [sys.executable, "-c", LOAD],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (ran.returncode, ran.stdout.strip()) == (0, "[]"), ran.stderr
