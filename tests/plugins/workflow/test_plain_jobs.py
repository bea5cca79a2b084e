"""The cost of the plugin for jobs that are no steps."""

from __future__ import annotations

from collections.abc import Set
from typing import Any
from uuid import UUID

import pytest

from chancy.plugins.workflow import Workflows, chain
from chancy.postgres.settle.plugin_writes import PluginWrites
from tests.plugins.workflow import steps
from tests.plugins.workflow.running import working
from tests.support.sql import ask
from tests.support.waiting import eventually


async def test_plain_jobs_are_settled_without_the_plugin(
    flows_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []
    write = PluginWrites.write

    async def noted(self: PluginWrites, session: Any, wanted: Any, ids: Set[UUID] | None) -> None:
        written.extend(len(one.batch) for one in wanted)
        await write(self, session, wanted, ids)

    monkeypatch.setattr(PluginWrites, "write", noted)
    flows = Workflows()
    async with working(flows_dsn, flows) as chancy:
        pushed = [await chancy.push(steps.number.job(n)) for n in range(5)]
        assert [await one.result(10) for one in pushed] == [0, 1, 2, 3, 4]
        await eventually(lambda: not ask(flows_dsn, "select id from chancy.jobs"))
        assert written == []
        reference = await chancy.push(chain("w", steps.number.job(5)))
        assert await reference.result(10) == 5
        assert written == [1]
