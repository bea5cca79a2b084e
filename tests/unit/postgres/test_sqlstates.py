"""What the code of an error, and the function of the server that raised it, tell."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from chancy.postgres.drivers import sqlstates


@pytest.mark.parametrize("psycopg", [True, False])
def test_a_full_queue_of_notifications_passes_and_other_limits_do_not(psycopg: bool) -> None:
    """The queue of a server has 8 GB: errors as each driver raises them stand in for it."""

    def raised(function: str) -> Exception:
        name = "source_function" if psycopg else "server_source_function"
        fields = SimpleNamespace(**{name: function})
        return cast(Exception, SimpleNamespace(diag=fields) if psycopg else fields)

    assert sqlstates.passing("54000", raised("PreCommit_Notify"))
    assert not sqlstates.passing("54000", raised("_bt_check_third_page"))
    assert not sqlstates.passing("22000", raised("PreCommit_Notify"))


def test_a_missing_table_with_a_schema_names_the_command_that_creates_it() -> None:
    advised = sqlstates.advised("42P01", 'relation "chancy.dashboard_audit" does not exist')
    assert "`chancy migrate upgrade`, with --app" in advised
    other = 'relation "orders" does not exist'
    assert sqlstates.advised("42P01", other) == other
