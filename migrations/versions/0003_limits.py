"""Limits and options of queues; notes of running jobs."""

from pathlib import Path

from alembic import context, op
from sqlalchemy import text

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_FOLDER = Path(__file__).parent / "0003_limits"


def _run(statement: str) -> None:
    for name, value in context.config.attributes["placeholders"].items():
        statement = statement.replace("{" + name + "}", value)
    op.execute(text(statement.replace(":", "\\:")))


def upgrade() -> None:
    for path in sorted(_FOLDER.glob("*.sql")):
        _run(path.read_text())


def downgrade() -> None:
    _run("drop function {schema}.claim(uuid, uuid, text, int, smallint[], bigint[])")
    _run("drop function {schema}.note(uuid[], uuid[], text[])")
    _run("alter table {schema}.workers drop column broken")
    _run("alter table {schema}.queues drop column limits, drop column options")
