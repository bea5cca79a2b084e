"""The tables of a later release: one more revision of the core, which is written by the tests.

The workers of this release must go on while that revision runs, and after it: it adds columns to
every table that they use, replaces functions that they call, and adds one of the same name with
other parameters.
"""

from __future__ import annotations

import shutil
from importlib import resources
from pathlib import Path

from chancy.postgres.schema.component import CORE_NAME, HEAD, Component, Migrations

PACKAGE = "next_release_core"
NEXT = "0002"
_CORE = Path(str(resources.files("chancy.migrations"))) / "versions"
_COLUMNS = """\
alter table {schema}.jobs add column shard int;
alter table {schema}.finished_jobs add column shard int;
alter table {schema}.queues add column weight int not null default 1;
alter table {schema}.workers add column zone text not null default ''
"""
_REVISION = """\
from alembic import context
revision, down_revision = {revision!r}, {before!r}
def upgrade():
    context.config.attributes["run_folder"](__file__)
def downgrade():
    run = context.config.attributes["run"]
    arguments = "uuid, uuid, text, bigint, int[], bigint[], int, int, boolean"
    run(f"drop function {{{{schema}}}}.claim({{arguments}})")
    for table, column in (
        ("jobs", "shard"), ("finished_jobs", "shard"), ("queues", "weight"), ("workers", "zone")
    ):
        run(f"alter table {{{{schema}}}}.{{table}} drop column {{column}}")
"""


def component() -> Component:
    return Component(Migrations(name=CORE_NAME, package=PACKAGE, head=NEXT))


def written(folder: Path) -> Component:
    """Write the package of that history into a folder of modules."""
    versions = folder / PACKAGE / "versions"
    shutil.copytree(_CORE, versions, ignore=shutil.ignore_patterns("__pycache__"))
    more = versions / f"{NEXT}_more"
    more.mkdir()
    (more / "01_columns.sql").write_text(_COLUMNS)
    for file in sorted((versions / "0001_core").glob("*.sql")):
        text, name = file.read_text(), file.stem[3:]
        if name in {"finish", "finish_plain", "requeue", "promote", "cancel"}:
            text = text.replace("create function", "create or replace function")
            (more / f"02_{name}.sql").write_text(text)
        elif name == "claim":
            text = text.replace(
                "p_limit int, p_bytes bigint, p_lanes int[],\n  p_hints bigint[]",
                "p_bytes bigint, p_lanes int[], p_hints bigint[], p_limit int, p_shard int",
            )
            (more / f"02_{name}.sql").write_text(text)
    (versions / f"{NEXT}_more.py").write_text(_REVISION.format(revision=NEXT, before=HEAD))
    return component()
