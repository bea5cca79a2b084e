"""The tables and functions of the core."""

from pathlib import Path

from alembic import context, op
from sqlalchemy import text

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_FOLDER = Path(__file__).parent / "0001_core"


def _run(statement: str) -> None:
    for name, value in context.config.attributes["placeholders"].items():
        statement = statement.replace("{" + name + "}", value)
    op.execute(text(statement.replace(":", "\\:")))


def upgrade() -> None:
    for path in sorted(_FOLDER.glob("*.sql")):
        _run(path.read_text())


def downgrade() -> None:
    for function in (
        "drop_days(int)",
        "make_days(int)",
        "orphans(float8, int)",
        "cancel(uuid[])",
        "promote(int)",
        "settled(uuid[], uuid[])",
        "put_back(uuid[], uuid[], smallint[], float8[], timestamptz[], text[], boolean[],"
        " boolean[], text[])",
        "finish(uuid[], uuid[], smallint[], text[], text[], boolean[], boolean[], text[])",
        "claim(uuid, uuid, text, smallint[], bigint[], int)",
        "with_meta(jsonb, text)",
        "with_failure(jsonb, text, int, uuid)",
        "utc(timestamptz)",
        "wake(text, boolean)",
        "channel()",
    ):
        _run("drop function {schema}." + function)
    for table in ("queues", "workers", "finished_jobs", "jobs"):
        _run("drop table {schema}." + table)
    _run("drop sequence {schema}.positions")
