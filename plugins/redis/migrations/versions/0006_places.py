"""The outbox of events is found by partition, too: those behind one that stands still."""

from alembic import context

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    context.config.attributes["run_folder"](__file__)


def downgrade() -> None:
    run = context.config.attributes["run"]
    run("drop index {schema}.redis_events_place")
