"""The dead letters, and which of them were purged."""

from alembic import context

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    context.config.attributes["run_folder"](__file__)


def downgrade() -> None:
    run = context.config.attributes["run"]
    run("drop index {schema}.dead_letters_failed")
    run("drop function {schema}.mark_replayed")
    run("drop function {schema}.events_to_replay")
    run("drop function {schema}.file_events")
    run("drop function {schema}.replays_of")
    run("drop function {schema}.dead_letters_groups")
    run("drop function {schema}.dead_letters_page")
    run("drop function {schema}.dead_letters_reason")
    run("drop table {schema}.dead_letters_purged")
    run("drop table {schema}.dead_letters")
    run("drop function {schema}.dead_letters_fingerprint")
