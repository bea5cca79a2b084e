"""Workflows: their steps, what joins wait for, and signals."""

from alembic import context

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

FUNCTIONS = (
    "part",
    "lose",
    "extend",
    "attach",
    "reaches",
    "retry",
    "again",
    "cancel",
    "proceed",
    "signal",
    "push",
    "insert",
    "advance",
    "turn",
    "forgive",
    "lock_soon",
    "lock",
    "resume",
    "fail",
    "compensate",
    "finish",
    "begin",
    "heard",
    "start",
    "listen",
    "runs",
    "ready",
    "meta",
    "arguments",
    "value",
)


def upgrade() -> None:
    context.config.attributes["run_folder"](__file__)


def downgrade() -> None:
    run = context.config.attributes["run"]
    for function in FUNCTIONS:
        run(f"drop function {{schema}}.workflows_{function}")
    for table in (
        "workflows_starts",
        "workflows_timers",
        "workflows_signals",
        "workflows_joins",
        "workflows_steps",
        "workflows",
    ):
        run(f"drop table {{schema}}.{table}")
