"""Pushes a job of each kind, and waits for what they return."""

import asyncio

from jobs import add, chancy, greet


async def main() -> None:
    async with chancy:
        await chancy.migrate()
        sum_ = await chancy.push(add.job(a=2, b=3))
        greeting = await chancy.push(greet.job(name="Ann").with_priority(10))
        print("pushed", sum_.id, "and", greeting.id)
        for reference in (sum_, greeting):
            print((await reference.wait(timeout_s=60)).result)


asyncio.run(main())
