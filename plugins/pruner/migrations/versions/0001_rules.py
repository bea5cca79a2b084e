"""The functions that apply rules to the history."""

from alembic import context

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    context.config.attributes["run_folder"](__file__)


def downgrade() -> None:
    run = context.config.attributes["run"]
    run(
        "drop function {schema}.pruner_step(text, timestamptz, timestamptz, timestamptz, smallint,"
        " text, bigint, int, boolean)"
    )
    run("drop function {schema}.pruner_queues(int)")
