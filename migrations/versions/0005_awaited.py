"""Notices for those who wait for the end of a job."""

from pathlib import Path

from alembic import context

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_VERSIONS = Path(__file__).parent


def upgrade() -> None:
    context.config.attributes["run_folder"](__file__)


def downgrade() -> None:
    run = context.config.attributes["run"]
    run((_VERSIONS / "0004_failed" / "01_finish_plain.sql").read_text())
    run((_VERSIONS / "0004_failed" / "02_finish.sql").read_text())
    cancel = (_VERSIONS / "0001_core" / "24_cancel.sql").read_text()
    run(cancel.replace("create function", "create or replace function"))
    run("drop function {schema}.tell_finished(uuid)")
    run("drop table {schema}.awaited")
