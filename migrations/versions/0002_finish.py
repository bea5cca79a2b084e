"""A shorter way for settlements that carry only a result."""

from pathlib import Path

from alembic import context, op
from sqlalchemy import text

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_FOLDER = Path(__file__).parent / "0002_finish"
_BEFORE = Path(__file__).parent / "0001_core" / "20_finish.sql"


def _run(statement: str) -> None:
    for name, value in context.config.attributes["placeholders"].items():
        statement = statement.replace("{" + name + "}", value)
    op.execute(text(statement.replace(":", "\\:")))


def upgrade() -> None:
    for path in sorted(_FOLDER.glob("*.sql")):
        _run(path.read_text())


def downgrade() -> None:
    _run(_BEFORE.read_text().replace("create function", "create or replace function"))
    _run("drop function {schema}.finish_plain(uuid[], uuid[], smallint[], text[])")
