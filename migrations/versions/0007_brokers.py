"""Queues whose jobs live in another broker."""

from alembic import context

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    context.config.attributes["run_folder"](__file__)


def downgrade() -> None:
    context.config.attributes["run"](
        "alter table {schema}.queues drop column broker, drop column broker_options"
    )
