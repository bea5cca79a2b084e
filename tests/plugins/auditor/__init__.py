"""A plugin whose tables stand on those of another."""

from __future__ import annotations

from collections.abc import Sequence

from chancy.plugin.plugin import Plugin
from chancy.postgres.schema.component import Migrations


class Clerk(Plugin):
    """Owns nothing, and stands between the two."""

    @classmethod
    def get_identifier(cls) -> str:
        return "tests.clerk"

    def get_dependencies(self) -> Sequence[str]:
        return ["tests.ledger"]


class Auditor(Plugin):
    """Keeps findings about the entries of the ledger."""

    @classmethod
    def get_identifier(cls) -> str:
        return "tests.auditor"

    def get_dependencies(self) -> Sequence[str]:
        return ["tests.clerk"]

    def migrations(self) -> Migrations | None:
        return Migrations(name="auditor", package="tests.plugins.auditor.migrations", head="0001")
