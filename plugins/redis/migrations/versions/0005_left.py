"""Jobs in Postgres that are not taken to Redis are claimed without those that are."""

from alembic import context

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    context.config.attributes["run_folder"](__file__)


def downgrade() -> None:
    run = context.config.attributes["run"]
    run("drop function {schema}.redis_claim(uuid, uuid, text, int)")
