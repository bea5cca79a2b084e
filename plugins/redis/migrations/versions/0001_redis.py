"""The outbox of events, adopted jobs, and the archive."""

from alembic import context

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    context.config.attributes["run_folder"](__file__)


def downgrade() -> None:
    run = context.config.attributes["run"]
    for function in (
        "redis_claim(uuid, uuid, text, int)",
        "redis_moved(uuid[], uuid[])",
        "redis_move(text, int, bigint, float8)",
        "redis_archive",
    ):
        run("drop function {schema}." + function)
    for table in ("redis_moves", "redis_turns", "redis_events"):
        run("drop table {schema}." + table)
