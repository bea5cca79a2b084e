"""How Alembic runs the revisions of a component, within the transaction of the caller.

``chancy.postgres.schema.revisions`` puts the connection, the schema and the version table in
place. What
a revision may ask for stands in ``context.config.attributes`` and keeps its meaning for ever:

- ``run(statement)`` executes one statement or several, with ``{schema}`` (an identifier),
  ``{schema_text}`` (a literal) and ``{pinned_plan}`` (settings of a function: see `PINNED_PLAN` in
  ``chancy.postgres.schema.revisions``) put in.
- ``run_folder(__file__)`` runs the ``.sql`` files of the folder beside a revision that has its
  name, ``0001_core.py`` and ``0001_core/``, in the order of their names.

A revision that says ``concurrently = True`` runs outside of a transaction: each ``run``, and each
file of ``run_folder``, is then one statement that bears to be repeated.
"""

from pathlib import Path

from alembic import context, op
from sqlalchemy import text

settings = context.config.attributes
concurrently = settings["concurrently"]
options = {
    "transactional_ddl": not concurrently,
    "version_table": settings["version_table"],
    "version_table_schema": settings["schema"],
    "target_metadata": None,
}


def run(statement: str) -> None:
    for name, value in settings["placeholders"].items():
        statement = statement.replace("{" + name + "}", value)
    if concurrently:
        settings["before"](statement)
    op.execute(text(statement.replace(":", "\\:")))


def run_folder(file: str) -> None:
    folder = Path(file).with_suffix("")
    paths = sorted(folder.glob("*.sql"))
    if not paths:
        raise FileNotFoundError(f"{folder} has no .sql files: does the distribution contain them?")
    for path in paths:
        run(path.read_text(encoding="utf-8"))


def schema_is_there() -> bool:
    """Asked first: to make a schema "if not exists" takes the right to make one, in any case."""
    if context.is_offline_mode():
        return bool(context.get_starting_revision_argument() not in (None, "base"))
    asked = text("select from pg_namespace where nspname = :name")
    found = settings["connection"].execute(asked, {"name": settings["schema"]})
    return found.first() is not None


settings.update(run=run, run_folder=run_folder)

if context.is_offline_mode():
    context.configure(
        dialect_name="postgresql",
        # Any style but those with per cents, which would be doubled in the output.
        dialect_opts={"paramstyle": "named"},
        literal_binds=True,
        **options,
    )
else:
    context.configure(connection=settings["connection"], **options)
with context.begin_transaction():
    if settings["makes_schema"] and not schema_is_there():
        context.execute("create schema if not exists " + settings["placeholders"]["schema"])
    context.run_migrations()
