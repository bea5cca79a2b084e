"""Rules of aging, and how they are refused."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from chancy.errors import ConfigurationError
from chancy.plugin.discovery import made
from chancy.plugins.reprioritize import Aging, Reprioritize

MINUTE = timedelta(minutes=1)


@pytest.mark.parametrize(
    "settings",
    [
        {"every": 60}, {"every": timedelta(0)}, {"every": timedelta(days=9999)},
        {"every": MINUTE, "by": 0}, {"every": MINUTE, "by": True}, {"every": MINUTE, "up_to": 101},
        {"every": MINUTE, "up_to": -100}, {"every": MINUTE, "queue": ""},
        {"every": MINUTE, "func": "a'b"},
    ],
)  # fmt: skip
def test_rules_that_cannot_be_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="Aging: "):
        Aging(**settings)


def test_rules_come_from_tables_of_settings() -> None:
    plugin = made(Reprioritize, {"rules": [{"queue": "reports", "every": "PT5M", "up_to": 50}]})
    assert isinstance(plugin, Reprioritize)
    assert plugin.rules == (Aging(queue="reports", every=5 * MINUTE, up_to=50),)
    for rules in ([], [{"every": 5, "qeue": "x"}], [{"every": 0}]):
        with pytest.raises(ConfigurationError, match=r"^x.toml: the plugin 'chancy.reprioritize'"):
            made(Reprioritize, {"rules": rules}, source="x.toml")
