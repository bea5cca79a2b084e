"""Jobs in Postgres of queues that live in Redis: they are taken there."""

from alembic import context

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    context.config.attributes["run_folder"](__file__)


def downgrade() -> None:
    run = context.config.attributes["run"]
    run("drop function {schema}.redis_moved(uuid[])")
    run("drop function {schema}.redis_move(text, int, float8)")
    run("drop table {schema}.redis_moves")
