"""Patterns of names mean the same in Python and in a statement."""

from __future__ import annotations

import psycopg
import pytest

from chancy.errors import ConfigurationError
from chancy.plugin.patterns import check_pattern, exact, like, matches

NAMES = ("shop.jobs.sell", "shop_jobs.sell", "shop.jobs", "a:b/c-d", "büro.öffnen", "S", "a\nb")


@pytest.mark.parametrize(
    "pattern", ["shop.jobs.sell", "shop.*", "shop?jobs.*", "*_*", "*", "?", "*.ö*", "a:b/c-?", "x"]
)
def test_python_and_the_server_agree(pattern: str, server_dsn: str) -> None:
    check_pattern(pattern, "rule")
    with psycopg.connect(server_dsn) as connection:
        for name in NAMES:
            row = connection.execute("select %s like %s", (name, like(pattern))).fetchone()
            assert row == (matches(pattern, name),), name


def test_a_name_is_no_pattern_and_none_means_all() -> None:
    assert exact("shop.jobs_x.sell")
    assert matches("shop.jobs_x.sell", "shop.jobs_x.sell")
    assert not matches("shop.jobs_x.sell", "shop.jobs.x.sell")
    assert not exact("shop.*")
    assert not exact("sho?")
    assert matches(None, "anything")
    assert like(None) is None
    assert like("a_b%c\\*?") == "a\\_b\\%c\\\\%_"


@pytest.mark.parametrize("pattern", ["", "[ab]", "a b", "a%", "a\\b", "x" * 256, 7, None])
def test_an_invalid_pattern_is_refused(pattern: object) -> None:
    with pytest.raises(ConfigurationError, match=r"^rule="):
        check_pattern(pattern, "rule")
