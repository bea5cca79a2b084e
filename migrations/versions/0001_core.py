"""The tables and functions of the core."""

from alembic import context

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    context.config.attributes["run_folder"](__file__)


def downgrade() -> None:
    run = context.config.attributes["run"]
    for function in (
        "drop_days(int)",
        "make_days(int)",
        "orphans(float8, int)",
        "cancel(uuid[])",
        "promote(int)",
        "settled(uuid[], uuid[])",
        "put_back(uuid[], uuid[], smallint[], float8[], timestamptz[], text[], boolean[],"
        " boolean[], text[])",
        "finish(uuid[], uuid[], smallint[], text[], text[], boolean[], boolean[], text[])",
        "claim(uuid, uuid, text, smallint[], bigint[], int)",
        "with_meta(jsonb, text)",
        "with_failure(jsonb, text, int, uuid)",
        "utc(timestamptz)",
        "wake(text, boolean)",
        "channel()",
    ):
        run("drop function {schema}." + function)
    for table in ("queues", "workers", "finished_jobs", "jobs"):
        run("drop table {schema}." + table)
    run("drop sequence {schema}.positions")
