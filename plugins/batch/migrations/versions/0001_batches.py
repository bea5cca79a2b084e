"""Batches: their jobs, how many of them have ended, and what is pushed then."""

from alembic import context

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

FUNCTIONS = (
    "close",
    "admit",
    "seal",
    "begin",
    "settle_one",
    "settle",
    "forgive",
    "look",
    "count",
    "take",
    "finish",
    "call",
)


def upgrade() -> None:
    context.config.attributes["run_folder"](__file__)


def downgrade() -> None:
    run = context.config.attributes["run"]
    for function in FUNCTIONS:
        run(f"drop function {{schema}}.batches_{function}")
    run("drop type {schema}.batches_counts")
    for table in ("callbacks", "added", "shards", "jobs"):
        run(f"drop table {{schema}}.batches_{table}")
    run("drop table {schema}.batches")
