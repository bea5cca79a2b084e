"""A shorter way for settlements that carry only a result."""

from pathlib import Path

from alembic import context

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_BEFORE = Path(__file__).parent / "0001_core" / "20_finish.sql"


def upgrade() -> None:
    context.config.attributes["run_folder"](__file__)


def downgrade() -> None:
    run = context.config.attributes["run"]
    run(_BEFORE.read_text().replace("create function", "create or replace function"))
    run("drop function {schema}.finish_plain(uuid[], uuid[], smallint[], text[])")
