"""How Alembic runs the revisions of a component, within the transaction of the caller.

``chancy.postgres.schema.revisions`` sets the connection, the schema and the version table. A
revision uses these entries of ``context.config.attributes``, whose meaning never changes:

- ``run(statement)`` executes one or several statements, and replaces ``{schema}`` (an identifier),
  ``{schema_text}`` (a literal) and ``{pinned_plan}`` (settings of a function: see `PINNED_PLAN` in
  ``chancy.postgres.schema.revisions``).
- ``run_folder(__file__)`` runs the ``.sql`` files of the folder with the name of the revision, such
  as ``0001_core/`` for ``0001_core.py``, in the order of their names.

A revision that sets ``concurrently = True`` runs outside a transaction: each call of ``run``, and
each file of ``run_folder``, is then one statement that is safe to repeat.
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


def schema_exists() -> bool:
    """Whether the schema exists. "if not exists" would need the privilege to create it anyway."""
    if context.is_offline_mode():
        return bool(context.get_starting_revision_argument() not in (None, "base"))
    asked = text("select from pg_namespace where nspname = :name")
    found = settings["connection"].execute(asked, {"name": settings["schema"]})
    return found.first() is not None


settings.update(run=run, run_folder=run_folder)

if context.is_offline_mode():
    context.configure(
        dialect_name="postgresql",
        # The default style would double each percent sign in the output.
        dialect_opts={"paramstyle": "named"},
        literal_binds=True,
        **options,
    )
else:
    context.configure(connection=settings["connection"], **options)
with context.begin_transaction():
    if context.is_offline_mode() and not concurrently:
        context.execute(settings["secure"])
    if settings["makes_schema"] and not schema_exists():
        context.execute("create schema if not exists " + settings["placeholders"]["schema"])
    context.run_migrations()
