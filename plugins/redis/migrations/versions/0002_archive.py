"""The archive: what writes finished jobs of Redis queues into the history."""

from alembic import context

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    context.config.attributes["run_folder"](__file__)


def downgrade() -> None:
    context.config.attributes["run"]("drop function {schema}.redis_archive")
