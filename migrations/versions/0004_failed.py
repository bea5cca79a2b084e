"""Failed jobs are kept, also where the queue does not keep its finished jobs."""

from pathlib import Path

from alembic import context

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_BEFORE = Path(__file__).parent / "0002_finish"


def upgrade() -> None:
    context.config.attributes["run_folder"](__file__)


def downgrade() -> None:
    run = context.config.attributes["run"]
    run(
        (_BEFORE / "01_finish_plain.sql")
        .read_text()
        .replace("create function", "create or replace function")
    )
    run((_BEFORE / "02_finish.sql").read_text())
