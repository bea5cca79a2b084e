"""How Alembic runs the revisions: in one transaction, one caller at a time.

``chancy.postgres.schema`` puts the connection, the schema and the version table in place.
"""

from alembic import context
from sqlalchemy import text

settings = context.config.attributes
options = {
    "version_table": settings["version_table"],
    "version_table_schema": settings["schema"],
    "target_metadata": None,
}

if context.is_offline_mode():
    context.configure(
        dialect_name="postgresql",
        # Any style but those with per cents, which would be doubled in the output.
        dialect_opts={"paramstyle": "named"},
        literal_binds=True,
        **options,
    )
    with context.begin_transaction():
        context.execute("create schema if not exists " + settings["placeholders"]["schema"])
        context.run_migrations()
else:
    connection = settings["connection"]
    with connection.begin():
        # Two deploys may migrate at once: the second waits here and then finds nothing to do.
        connection.execute(
            text("select pg_advisory_xact_lock(hashtext('chancy migrations'), hashtext(:schema))"),
            {"schema": settings["schema"]},
        )
        connection.execute(
            text("create schema if not exists " + settings["placeholders"]["schema"])
        )
        context.configure(connection=connection, **options)
        with context.begin_transaction():
            context.run_migrations()
