"""The audit of the dashboard, and its counts."""

from alembic import context

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    context.config.attributes["run_folder"](__file__)


def downgrade() -> None:
    run = context.config.attributes["run"]
    run("drop function {schema}.dashboard_scan")
    run("drop type {schema}.dashboard_job")
    run("drop function {schema}.dashboard_counts")
    run("drop index {schema}.jobs_dashboard_scheduled")
    run("drop table {schema}.dashboard_audit")
