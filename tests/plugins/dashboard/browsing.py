"""Requests to a dashboard: without a server, as a browser sends them."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from html import unescape
from typing import Any

import httpx
from starlette.requests import Request

from chancy import Chancy
from chancy.plugins.dashboard import Dashboard, Person, Role
from chancy.plugins.dashboard.site import Site

VIEWER = Person(name="vera", role=Role.VIEWER)
OPERATOR = Person(name="olaf", role=Role.OPERATOR)
ADMIN = Person(name="ada", role=Role.ADMIN)
PEOPLE = {person.name: person for person in (VIEWER, OPERATOR, ADMIN)}


def by_header(request: Request) -> Person | None:
    """The person that the header names."""
    return PEOPLE.get(request.headers.get("x-person", ""))


class Browser:
    """One person's browser."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client

    async def get(self, path: str = "", **headers: str) -> httpx.Response:
        return await self.client.get(f"/{path}", headers=headers)

    async def token(self, path: str = "jobs") -> str:
        """The token of the forms of a page."""
        page = await self.get(path)
        found = re.search(r'name="token" value="(\w+)"', page.text)
        assert found, page.text
        return found[1]

    async def post(
        self, path: str, fields: Mapping[str, Any], headers: Mapping[str, str] | None = None
    ) -> httpx.Response:
        """Send a form of the page `jobs`."""
        data = {"token": await self.token(), **fields}
        return await self.client.post(f"/{path}", data=data, headers=headers)


@asynccontextmanager
async def browser(
    chancy: Chancy, person: Person | None = None, *, host: str = "localhost", **settings: Any
) -> AsyncGenerator[Browser]:
    """A browser on this machine, of a person whom the dashboard knows."""
    site = Dashboard(chancy, auth=by_header if person else None, **settings)
    transport = httpx.ASGITransport(app=site, client=("127.0.0.1", 1))
    headers = {"x-person": person.name} if person else {}
    async with httpx.AsyncClient(
        transport=transport, base_url=f"http://{host}", headers=headers
    ) as client:
        yield Browser(client)


def text_of(response: httpx.Response) -> str:
    """The text of a page, without its markup."""
    body = response.text.partition("<main")[2].partition(">")[2].replace("<wbr>", "")
    return unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", body)))


def site_of(chancy: Chancy) -> Site:
    """That of the last dashboard of an application."""
    site = chancy._before_close[-1].args[0]  # type: ignore[attr-defined]
    assert isinstance(site, Site)
    return site
