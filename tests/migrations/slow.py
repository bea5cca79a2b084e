"""A component of three revisions, the second of which runs outside of a transaction."""

from __future__ import annotations

from pathlib import Path

from chancy.postgres.schema.component import Component, Migrations

FIRST = "create table {schema}.slow_rows (id bigint primary key, kind int not null)"
BUILD = "create index concurrently if not exists slow_rows_kind on {schema}.slow_rows (kind)"
REVISION = """\
from alembic import context
revision = {revision!r}
down_revision = {before!r}
{more}
def upgrade():
    context.config.attributes["run_folder"](__file__)
def downgrade():
    run = context.config.attributes["run"]
    run({down!r})
"""


def written(folder: Path, *statements: str) -> Component:
    """Write its package into a folder of modules. ``statements``: of the second revision."""
    versions = folder / "slow_tables" / "versions"
    drop = "drop index concurrently if exists {schema}.slow_rows_kind"
    for revision, before, more, texts, down in (
        ("0001", None, "", [FIRST], "drop table {schema}.slow_rows"),
        ("0002", "0001", "concurrently = True", statements or [BUILD], drop),
        ("0003", "0002", "", ["alter table {schema}.slow_rows add note text"],
         "alter table {schema}.slow_rows drop note"),
    ):  # fmt: skip
        folder = versions / f"{revision}_x"
        folder.mkdir(parents=True, exist_ok=True)
        for number, text in enumerate(texts):
            (folder / f"{number}.sql").write_text("-- What it is for.\n" + text)
        (versions / f"{revision}_x.py").write_text(
            REVISION.format(revision=revision, before=before, more=more, down=down)
        )
    return component()


def component() -> Component:
    return Component(Migrations(name="slow", package="slow_tables", head="0003"), "tests.slow")
