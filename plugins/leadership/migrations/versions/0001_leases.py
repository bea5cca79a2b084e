"""The lease of the leader."""

from alembic import context

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    context.config.attributes["run_folder"](__file__)


def downgrade() -> None:
    run = context.config.attributes["run"]
    run("drop function {schema}.leads(uuid, bigint)")
    run("drop table {schema}.leadership_leases")
