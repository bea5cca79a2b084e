"""Limits and options of queues; notes of running jobs."""

from alembic import context

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    context.config.attributes["run_folder"](__file__)


def downgrade() -> None:
    run = context.config.attributes["run"]
    run("drop function {schema}.claim(uuid, uuid, text, int, smallint[], bigint[])")
    run("drop function {schema}.note(uuid[], uuid[], text[])")
    run("alter table {schema}.workers drop column broken")
    run("alter table {schema}.queues drop column limits, drop column options")
