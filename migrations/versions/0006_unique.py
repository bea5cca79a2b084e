"""Unique keys of jobs, and a function that pushes one from SQL."""

from pathlib import Path

from alembic import context

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_CLAIM = Path(__file__).parent / "0003_limits" / "04_claim.sql"


def upgrade() -> None:
    context.config.attributes["run_folder"](__file__)


def downgrade() -> None:
    run = context.config.attributes["run"]
    many = (
        "uuid[], text[], smallint[], text[], text[], timestamptz[], float8[], int[], text[], "
        "text[], bytea[], text[], boolean[], float8[], float8[], boolean"
    )
    run(
        "drop function {schema}.push(text, text, jsonb, int, timestamptz, interval, int, jsonb, "
        "uuid, text, text, text, interval, text)"
    )
    run("drop function {schema}.check_unique(text, text, text, interval, text)")
    run("drop function {schema}.check_push(text, text, jsonb, int, int, jsonb)")
    run(f"drop function {{schema}}.push_unique({many})")
    run(f"drop function {{schema}}.push_unique_all({many})")
    run(
        "drop function {schema}.push_keyed(uuid, bigint, text, smallint, text, jsonb, timestamptz, "
        "int, jsonb, jsonb, bytea, text, boolean, float8, float8)"
    )
    run("drop function {schema}.unique_key(text, text, text)")
    run("drop function {schema}.new_id()")
    run(_CLAIM.read_text().replace("create function", "create or replace function"))
    run("drop table {schema}.unique_periods")
    run("alter table {schema}.jobs drop column unique_until_claim")
