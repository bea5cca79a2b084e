"""Dependencies of FastAPI: the open application, and jobs that a request pushes at its end.

Needs FastAPI 0.121 or newer, which ends a dependency before it sends the response.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Annotated

from fastapi import Depends
from starlette.requests import HTTPConnection

from chancy.app.app import Chancy
from chancy.asgi import RequestJobs, chancy_lifespan, chancy_of

__all__ = ["Jobs", "OpenChancy", "RequestJobs", "chancy_lifespan"]


def _opened(connection: HTTPConnection) -> Chancy:
    return chancy_of(connection.scope)


#: The application that `chancy_lifespan` keeps open.
OpenChancy = Annotated[Chancy, Depends(_opened)]


async def _collected(chancy: OpenChancy) -> AsyncGenerator[RequestJobs]:
    async with RequestJobs(chancy) as jobs:
        yield jobs


#: Jobs that are pushed after the function of the route has returned, and before its response is
#: sent: if they cannot be stored, the request fails. If the function raises, none is pushed.
Jobs = Annotated[RequestJobs, Depends(_collected, scope="function")]
