"""Workflows: steps that run in an order, and pass on what they return."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from chancy.attempt import Claim, Outcome, Settlement
from chancy.plugin import Application, Plugin
from chancy.plugins.workflow.description import OnFailure, Step, Workflow, chain, chord, group
from chancy.plugins.workflow.ends import Notes, advancing
from chancy.plugins.workflow.preparation import Preparation
from chancy.plugins.workflow.sources import Each, From
from chancy.plugins.workflow.store import statement, store_of
from chancy.postgres.component import Migrations
from chancy.postgres.within import fetch_within
from chancy.settling import Transaction

__all__ = ["Each", "From", "OnFailure", "Step", "Workflow", "Workflows", "chain", "chord", "group"]


class Workflows(Plugin):
    def __init__(self) -> None:
        self._notes = Notes()

    @classmethod
    def get_identifier(cls) -> str:
        return "chancy.workflows"

    def migrations(self) -> Migrations | None:
        return Migrations(
            name="workflows",
            package="chancy.plugins.workflow.migrations",
            head="0001",
            core="0005",
        )

    def judging(self, claim: Claim, outcome: Outcome, verdict: Settlement) -> Settlement:
        if claim.meta is not None:
            self._notes.note(claim, outcome, time.monotonic())
        return verdict

    async def settling(self, tx: Transaction, batch: Sequence[Settlement]) -> None:
        ends = self._notes.ends(batch)
        if ends:
            await tx.fetch(*advancing(tx.schema, ends))
            self._notes.forget([one.job for one in ends])

    async def push(
        self,
        chancy: Application,
        workflow: Workflow,
        *,
        within: object | None = None,
        validate: bool = True,
    ) -> UUID:
        store = store_of(chancy.broker)
        prepared = Preparation(workflow, chancy.registry if validate else None).prepare()
        sql = statement("push", store.schema)
        parameters: list[Any] = [prepared.id, prepared.name, prepared.ends]
        parameters += prepared.columns.parameters()
        if within is None:
            await store.fetch(sql, *parameters)
        else:
            await fetch_within(within, sql, *parameters)
        return prepared.id
