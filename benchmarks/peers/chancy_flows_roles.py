"""The roles of chancy with workflows, from this checkout, through its public API."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.peers import chancy_roles
from chancy import Plugin
from chancy.plugins.workflow import Workflow, Workflows, chain


class Roles(chancy_roles.Roles):
    """Default settings with the workflow plugin. `benchmarks.workflows` empties the tables."""

    async def set_up(self) -> None:
        async with self.application() as app:
            await app.migrate()
        await super().set_up()

    async def push_chain(self, steps: int) -> int:
        made = chain("chain", *(self._make(number=number) for number in range(steps)))
        await self._app.push(made)
        return steps

    async def push_fan(self, steps: int) -> int:
        flow = Workflow("fan").add(self._make(number=steps), "out")
        names = [f"step {number}" for number in range(steps)]
        for number, name in enumerate(names):
            flow.add(self._make(number=number), name, after="out")
        flow.add(self._make(number=steps + 1), "in", after=names)
        await self._app.push(flow)
        return len(flow)

    def _plugins(self) -> Sequence[Plugin]:
        return [Workflows()]
