"""The outbox of streams: events that were sent inside transactions, on their way to Redis."""

from alembic import context

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    context.config.attributes["run_folder"](__file__)


def downgrade() -> None:
    run = context.config.attributes["run"]
    run("drop table {schema}.redis_turns")
    run("drop table {schema}.redis_events")
