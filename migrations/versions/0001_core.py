"""The tables and functions of the core."""

from alembic import context

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_UNIQUE = (
    "uuid[], text[], smallint[], text[], text[], timestamptz[], float8[], int[], text[], text[], "
    "bytea[], text[], boolean[], float8[], float8[], timestamptz[], float8[], boolean"
)
# What calls another function is dropped before it.
_FUNCTIONS = (
    "delete_finished(uuid, smallint[], text, text, timestamptz, timestamptz, jsonb, text, int, "
    "int, boolean)",
    "matching_jobs(uuid, uuid, smallint[], text, text, timestamptz, timestamptz, jsonb, text, int, "
    "int)",
    "jobs_by_id(uuid[])",
    "backlog()",
    "push(text, text, jsonb, int, timestamptz, interval, int, jsonb, uuid, text, text, text, "
    "interval, text, timestamptz, interval)",
    "check_unique(text, text, text, interval, text)",
    "check_push(text, text, jsonb, int, int, jsonb)",
    f"push_unique({_UNIQUE})",
    f"push_unique_all({_UNIQUE})",
    "push_keyed(uuid, bigint, text, smallint, text, jsonb, timestamptz, int, jsonb, jsonb, bytea, "
    "text, boolean, float8, float8, timestamptz)",
    "unique_key(text, text, text)",
    "new_id()",
    "drop_days(int)",
    "make_days(int, int)",
    "orphans(float8, int)",
    "expire(int)",
    "release(text, uuid[], int)",
    "cancel(uuid[])",
    "forget_finished()",
    "survey(uuid, text[], boolean)",
    "waiting(text[])",
    "promote(int, float8, uuid)",
    "update_meta(uuid[], uuid[], text[])",
    "settled(uuid[], uuid[])",
    "requeue(uuid[], uuid[], smallint[], float8[], timestamptz[], text[], boolean[], boolean[], "
    "text[], boolean[])",
    "finish(uuid[], uuid[], smallint[], text[], text[], boolean[], boolean[], text[])",
    "finish_plain(uuid[], uuid[], smallint[], text[])",
    "notify_finished(uuid)",
    "claim_set_aside(uuid, uuid, text, int, text[], bigint)",
    "set_aside(text, int)",
    "claim(uuid, uuid, text, int, bigint, int[], bigint[], boolean)",
    "check_counted(text[], text)",
    "expired(timestamptz, int, smallint)",
    "admit(timestamptz, jsonb)",
    "with_meta(jsonb, text)",
    "with_failure(jsonb, text, int, uuid, timestamptz, timestamptz)",
    "utc(timestamptz)",
    "wake(text, boolean, bigint)",
    "lock_queue(text)",
    "channel()",
)
_TABLES = (
    "recently_finished",
    "unique_periods",
    "awaited",
    "queues",
    "workers",
    "finished_jobs",
    "jobs",
)


def upgrade() -> None:
    context.config.attributes["run_folder"](__file__)


def downgrade() -> None:
    run = context.config.attributes["run"]
    for function in _FUNCTIONS:
        run("drop function {schema}." + function)
    for table in _TABLES:
        run("drop table {schema}." + table)
    run("drop sequence {schema}.positions")
