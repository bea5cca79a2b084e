"""The roles of chancy with workflows, from this checkout, through its public API."""

from __future__ import annotations

from benchmarks.control import SCHEMA
from benchmarks.peers import chancy_roles
from chancy import Chancy, Queue
from chancy.plugins.workflow import Workflow, Workflows, chain

_FLOWS = Workflows()


class Roles(chancy_roles.Roles):
    """Default settings with the workflow plugin. `benchmarks.workflows` empties the tables."""

    def application(self) -> Chancy:
        return Chancy(self.dsn, schema=SCHEMA, plugins=[_FLOWS], allow=["benchmarks.jobs.*"])

    async def set_up(self) -> None:
        async with self.application() as app:
            await app.migrate()
            await app.declare(Queue(name=self.settings["queue"], executor="async"))

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
