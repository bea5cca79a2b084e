"""The functions that raise the priorities of jobs that wait."""

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
        "drop function {schema}.reprioritize_step(text, smallint, bigint, text[], float8[], int[],"
        " int[], int, boolean)"
    )
    run("drop function {schema}.reprioritize_lanes(int)")
