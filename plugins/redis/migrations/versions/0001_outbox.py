"""The outbox: jobs of Redis queues that were pushed inside transactions."""

from alembic import context

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    context.config.attributes["run_folder"](__file__)


def downgrade() -> None:
    context.config.attributes["run"]("drop table {schema}.redis_outbox")
