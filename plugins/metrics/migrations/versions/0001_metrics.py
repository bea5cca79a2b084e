"""Metrics: what became of jobs, by time, queue and function."""

from alembic import context

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    context.config.attributes["run_folder"](__file__)


def downgrade() -> None:
    run = context.config.attributes["run"]
    run("drop function {schema}.on_cancelled")
    run("drop function {schema}.queue_backlog")
    run("drop function {schema}.queue_unfinished")
    run("drop function {schema}.metrics_roll_up")
    run("drop table {schema}.metrics")
    run("drop aggregate {schema}.metrics_sum (bigint[])")
    run("drop function {schema}.metrics_add")
