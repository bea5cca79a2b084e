"""An application in a web service: its lifespan, its dependencies, and the jobs of a request."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import pytest
from fastapi import Depends, FastAPI, HTTPException
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from chancy import Chancy, NotOpen, PushError, State
from chancy.asgi import MOST_JOBS, RequestJobs, chancy_of
from chancy.errors import ConfigurationError
from chancy.fastapi import Jobs, OpenChancy, chancy_lifespan
from chancy.testing.sandbox import Sandbox
from tests.support import jobs
from tests.support.sql import count


@asynccontextmanager
async def served(app: FastAPI, *, opened: bool = True) -> AsyncGenerator[httpx.AsyncClient]:
    """A client of a service that has started, as a server starts it."""
    async with AsyncExitStack() as stack:
        state: Any = {}
        if opened:
            state = await stack.enter_async_context(app.router.lifespan_context(app))

        async def asgi(scope: Any, receive: Any, send: Any) -> None:
            await app({**scope, "state": dict(state)}, receive, send)

        transport = httpx.ASGITransport(app=asgi, raise_app_exceptions=False)
        yield await stack.enter_async_context(
            httpx.AsyncClient(transport=transport, base_url="http://shop")
        )


def service(chancy: Chancy) -> FastAPI:
    app = FastAPI(lifespan=chancy_lifespan(chancy))

    @app.post("/add")
    async def add(count: int, chancy: OpenChancy, pending: Jobs) -> int:
        for number in range(count):
            pending.add(jobs.note.job(number))
        if not count:
            raise HTTPException(409)
        return len(await chancy.counts())

    @app.post("/refuse")
    def refuse(pending: Jobs) -> None:
        pending.add(jobs.note.job(1))
        raise HTTPException(409)

    @app.get("/open")
    def is_open(chancy: OpenChancy) -> str:
        return type(chancy).__name__

    return app


async def test_jobs_of_a_request_are_stored_before_its_response(dsn: str) -> None:
    async with served(service(Chancy(dsn))) as client:
        answer = await client.post("/add?count=3")
        assert answer.json() == 0, "the function has returned before anything is pushed"
        assert count(dsn) == 3
        assert (await client.get("/open")).json() == "Chancy"


async def test_a_request_that_fails_pushes_no_job(dsn: str) -> None:
    async with served(service(Chancy(dsn))) as client:
        assert (await client.post("/refuse")).status_code == 409
        assert count(dsn) == 0


async def test_a_request_fails_if_its_jobs_cannot_be_stored(dsn: str) -> None:
    chancy = Chancy(dsn, max_payload=2)
    async with served(service(chancy)) as client:
        assert (await client.post("/add?count=1")).status_code == 500
    assert count(dsn) == 0


async def test_jobs_of_a_request_are_stored_with_its_transaction(dsn: str) -> None:
    chancy = Chancy(dsn)
    engine = create_async_engine(dsn.replace("postgresql://", "postgresql+asyncpg://", 1))
    sessions = async_sessionmaker(engine)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
        yield
        await engine.dispose()

    async def transaction() -> AsyncIterator[AsyncSession]:
        async with sessions.begin() as session:
            yield session

    in_transaction = Depends(transaction, scope="function")

    async def collected(session: AsyncSession = in_transaction) -> AsyncIterator[RequestJobs]:
        async with RequestJobs(chancy, within=session) as pending:
            yield pending

    app = FastAPI(lifespan=chancy_lifespan(chancy, lifespan=lifespan))

    at_its_end = Depends(collected, scope="function")

    async def order(pending: RequestJobs = at_its_end) -> None:
        pending.add(jobs.note.job(1))

    async def failing(
        session: AsyncSession = in_transaction, pending: RequestJobs = at_its_end
    ) -> None:
        pending.add(jobs.note.job(2))
        await session.rollback()
        raise HTTPException(409)

    app.post("/order")(order)
    app.post("/failing")(failing)
    async with served(app) as client:
        assert (await client.post("/order")).status_code == 200
        assert count(dsn) == 1
        assert (await client.post("/failing")).status_code == 409
        assert count(dsn) == 1


async def test_a_lifespan_of_the_service_is_inside(dsn: str) -> None:
    chancy = Chancy(dsn)
    seen: list[object] = []

    @asynccontextmanager
    async def lifespan(app: str) -> AsyncGenerator[Mapping[str, Any]]:
        seen.append(app)
        await chancy.push(jobs.note.job(1))
        yield {"engine": "postgres"}
        await chancy.push(jobs.note.job(2))

    async with chancy_lifespan(chancy, lifespan=lifespan)("app") as state:
        assert state == {"engine": "postgres", "chancy": chancy}
        assert chancy_of({"state": state}) is chancy
    assert seen == ["app"]
    assert count(dsn) == 2
    with pytest.raises(NotOpen):
        await chancy.counts()


async def test_a_service_without_the_lifespan_gets_advice() -> None:
    app = service(Chancy("postgresql://localhost/shop"))
    with pytest.raises(ConfigurationError, match="lifespan=chancy_lifespan"):
        chancy_of({"type": "http"})
    async with served(app, opened=False) as client:
        assert (await client.get("/open")).status_code == 500


async def test_a_framework_without_a_state_of_the_lifespan_pushes(dsn: str) -> None:
    """As Litestar does: it calls each lifespan with itself, and drops what the lifespan yields."""
    chancy = Chancy(dsn)
    scope = {"type": "http", "state": {}, "litestar_app": object()}
    async with chancy_lifespan(chancy)("an application"):
        with pytest.raises(ConfigurationError, match="Litestar does not pass the state"):
            chancy_of(scope)
        async with RequestJobs(chancy) as pending:
            pending.add(jobs.note.job(1))
        assert count(dsn) == 1


async def test_a_request_adds_a_bounded_number_of_jobs() -> None:
    pending = RequestJobs(Chancy("postgresql://localhost/shop"))
    with pytest.raises(PushError, match="takes a job"):
        pending.add(jobs.note)  # type: ignore[arg-type]
    for _ in range(MOST_JOBS):
        pending.add(jobs.note.job(1))
    with pytest.raises(PushError, match=r"at most 10,000 jobs"):
        pending.add(jobs.note.job(1))


async def test_no_job_can_be_added_after_the_request() -> None:
    async with RequestJobs(Chancy("postgresql://localhost/shop")) as pending:
        pass
    with pytest.raises(PushError, match="after the jobs of the request"):
        pending.add(jobs.note.job(1))


async def test_a_service_is_tested_in_a_sandbox() -> None:
    chancy = Chancy("postgresql://localhost/none")
    with Sandbox(chancy) as sandbox:
        async with served(service(chancy)) as client:
            assert (await client.post("/add?count=2")).status_code == 200
        assert [job.state for job in await sandbox.drain()] == [State.SUCCEEDED] * 2


async def test_functions_are_called_before_an_application_closes(dsn: str) -> None:
    chancy = Chancy(dsn)
    order: list[str] = []

    async def first() -> None:
        order.append("first")

    async def second() -> None:
        await chancy.push(jobs.note.job(1))
        order.append("second")
        raise LookupError("of the caller")

    chancy.before_close(first)
    chancy.before_close(second)
    await chancy.__aenter__()
    async with chancy:
        pass
    assert order == []
    with pytest.raises(LookupError, match="of the caller"):
        await chancy.__aexit__(None, None, None)
    assert order == ["second", "first"]
    with pytest.raises(NotOpen):
        await chancy.counts()
