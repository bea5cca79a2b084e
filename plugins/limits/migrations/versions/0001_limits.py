"""Limits: slots, partitions and token buckets of queues with rules."""

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
        "limits_resume",
        "limits_skip",
        "limits_restore",
        "limits_sweep",
        "limits_next_s",
        "limits_claim",
        "limits_intake",
        "limits_room",
        "limits_hints",
        "limits_ring",
        "limits_pass",
        "limits_line_up",
        "limits_spend",
        "limits_configure",
        "limits_adopt",
        "limits_release",
        "limits_hold",
        "limits_unblock",
        "limits_judge",
        "limits_live",
        "limits_running",
        "limits_group",
        "limits_key",
    ):
        run("drop function {schema}." + function)
    run("drop index {schema}.jobs_limits_held")
    run("drop sequence {schema}.limits_turns")
    for table in (
        "limits_blocks",
        "limits_buckets",
        "limits_partitions",
        "limits_tenants",
        "limits_slots",
        "limits_queues",
    ):
        run("drop table {schema}." + table)
