"""Fixtures of every tier. Those of servers are in `tests.support`."""

from __future__ import annotations

import gc
import os
import signal
import sys

import pytest
from hypothesis import HealthCheck, settings

# An example may meet a moment in which the machine does something else.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")

# Hundreds of processes import the same modules: compiled once, not by each, whatever the shell
# says. The 450 modules of tests alone take each process that runs them 15 s of CPU time.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Imported modules and collected tests stay alive. Searching them for garbage is wasted: it took a
# seventh of the time.
gc.disable()

pytest_plugins = [
    "tests.support.chromium",
    "tests.support.introspection",
    "tests.support.leftovers",
    # After the plugin that it imports, whose assertions are rewritten.
    "tests.support.clusters",
    "tests.support.postgres_fixtures",
    "tests.support.redis_fixtures",
    "tests.support.replicated",
]


def pytest_configure() -> None:
    """Let child processes take SIGINT.

    A shell without job control, as of many CI systems, starts background programs with SIGINT
    ignored. Children inherit that, while a handler becomes the default action in them.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let the tests that may take longest begin first in `make chaos`, whose processes take them
    one by one: otherwise one of them works for a minute after the other has ended."""
    if getattr(config.option, "loadgroup", False):
        items.sort(key=_timeout_s, reverse=True)


def _timeout_s(item: pytest.Item) -> float:
    mark = item.get_closest_marker("timeout")
    return 0.0 if mark is None else float(mark.args[0])


def pytest_collection_finish() -> None:
    """Thousands of collected tests are garbage of nobody: walking them took a twelfth of the CPU
    time of the processes that run tests.

    Collections are rarer, too: with one for each 700 new objects, they took 7 % of the CPU time
    in Python, start and all.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000)
    gc.enable()


@pytest.fixture
def frequent_promotion(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker of this process looks five times as often for jobs that are due.

    A retry after ten milliseconds otherwise takes most of a second.
    """
    monkeypatch.setattr("chancy.worker.promoter._LONGEST_S", 0.2)
