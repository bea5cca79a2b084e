"""An index on the time of entries."""

from alembic import context

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None
concurrently = True


def upgrade() -> None:
    context.config.attributes["run_folder"](__file__)


def downgrade() -> None:
    run = context.config.attributes["run"]
    run("drop index concurrently if exists {schema}.audit_entries_at")
