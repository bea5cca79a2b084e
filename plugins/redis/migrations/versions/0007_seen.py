"""A job that was changed on its way to Redis is not deleted for what Redis has."""

from pathlib import Path

from alembic import context

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_BEFORE = Path(__file__).parent / "0004_moves"


def upgrade() -> None:
    context.config.attributes["run_folder"](__file__)


def downgrade() -> None:
    run = context.config.attributes["run"]
    for name in ("02_redis_move", "03_redis_moved"):
        before = (_BEFORE / f"{name}.sql").read_text(encoding="utf-8")
        run(before.replace("create function", "create or replace function"))
    run("alter table {schema}.redis_moves drop column seen")
