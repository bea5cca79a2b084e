"""The HTTP endpoint of a worker, and one in ASGI for a process without a worker."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import socket
from collections.abc import Awaitable, Callable, Coroutine, Iterable, MutableMapping
from concurrent.futures import TimeoutError as LateError
from socketserver import TCPServer, ThreadingMixIn
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeVar
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from chancy.errors import ChancyError, ConfigurationError
from chancy.plugin.runtime import Application, Runtime
from chancy.plugins.metrics import gauges
from chancy.plugins.metrics.exposition import JobsCollector
from chancy.plugins.metrics.series import SQL, MetricsTable
from chancy.text import shown

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

T = TypeVar("T")
Message = MutableMapping[str, Any]
logger = logging.getLogger("chancy.metrics")
#: Seconds in which the event loop of the worker, and the database, must respond.
_LOOP_S, _DATABASE_S = 5.0, 5.0
#: Seconds for which a response is cached. It is shorter than the time between two scrapes; else the
#: second one could go to another process, with an older response, and find lower counters.
_KEEP_S = 2.0
_ADDRESS = re.compile(r"(?:\[(?P<six>[^\]]+)\]|(?P<host>[^:]*)):(?P<port>\d{1,5})")


def parse_address(text: str, number: int = 0) -> tuple[str, int]:
    """The host and port of ``HOST:PORT``, for worker process ``number`` of a supervisor.

    The first process listens on the port, each further one on the next.

    :raises ConfigurationError: the text is no address.
    """
    match = _ADDRESS.fullmatch(text.strip())
    port = int(match["port"]) + number if match else 0
    if match is None or port > 65_535:
        raise ConfigurationError(
            f"metrics: {shown(text)} is no address: pass HOST:PORT, such as 0.0.0.0:9100"
        )
    return match["six"] or match["host"] or "127.0.0.1", port


async def resolved(address: tuple[str, int]) -> tuple[str, int]:
    """Resolve the host name of an address to its first address, IPv4 before IPv6.

    :raises ConfigurationError: the name is not known.
    """
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            *address, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError as error:
        raise _unusable(address, error) from None
    found.sort(key=lambda info: info[0] != socket.AF_INET)
    host, port, *_ = found[0][4]
    return str(host), int(port)


def _unusable(address: tuple[str, int], error: OSError) -> ConfigurationError:
    return ConfigurationError(f"metrics: cannot listen on {address[0]}:{address[1]}: {error}")


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def server_bind(self) -> None:
        # Without the DNS lookup of HTTPServer.server_bind, which blocks the event loop.
        TCPServer.server_bind(self)
        self.server_name, self.server_port = self.socket.getsockname()[:2]
        self.setup_environ()


class _IPv6Server(_Server):
    address_family = socket.AF_INET6


class _Handler(WSGIRequestHandler):
    #: Timeout of an idle connection in seconds.
    timeout = 10

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Log nothing: scrapes come every few seconds."""


class Endpoint:
    """Serves HTTP in a thread of its own, so that it answers while a job blocks the event loop.

    :param address: the address of a host, not its name: see `resolved`.
    :raises ConfigurationError: the address cannot be used.
    """

    def __init__(
        self,
        address: tuple[str, int],
        registry: CollectorRegistry,
        runtime: Runtime,
    ) -> None:
        self._registry = registry
        self._runtime = runtime
        self._loop = asyncio.get_running_loop()
        try:
            self._server = make_server(
                *address,
                self._serve,
                server_class=_IPv6Server if ":" in address[0] else _Server,
                handler_class=_Handler,
            )
        except OSError as error:
            raise _unusable(address, error) from None
        self.port: int = self._server.server_port
        self._thread = Thread(target=self._server.serve_forever, name="chancy metrics", daemon=True)

    def start(self) -> None:
        """Start to serve."""
        self._thread.start()
        logger.info("metrics_served host=%s port=%d", self._server.server_name, self.port)

    def stop(self) -> None:
        """Stop serving and close the socket. Blocks for up to half a second."""
        self._server.shutdown()
        self._server.server_close()

    def _serve(self, environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        path: str = environ.get("PATH_INFO", "")
        kind = "text/plain; charset=utf-8"
        try:
            match path.split("/")[1:]:
                case ["metrics"]:
                    status, kind = "200 OK", CONTENT_TYPE_LATEST
                    body = generate_latest(self._registry)
                case ["healthz"]:
                    status, body = self._checked(self._alive)
                case ["readyz"]:
                    status, body = self._checked(self._ready)
                case ["scale", *names] if names:
                    queue = "/".join(names)
                    jobs = self._call(gauges.backlog(self._runtime.broker, queue), _DATABASE_S)
                    if jobs is None:
                        status, body = "404 Not Found", b"no such queue\n"
                    else:
                        status, kind = "200 OK", "application/json"
                        body = json.dumps({"queue": queue, "backlog": jobs}).encode()
                case _:
                    status = "404 Not Found"
                    body = b"try /metrics, /healthz, /readyz or /scale/QUEUE\n"
        except ConfigurationError as error:
            status, body = "501 Not Implemented", f"{error}\n".encode()
        except (ChancyError, LateError) as error:
            reason = str(error) or "no response in time"
            status, body = "503 Service Unavailable", f"{reason}\n".encode()
        start(status, [("Content-Type", kind), ("Content-Length", str(len(body)))])
        return [body]

    def _checked(self, check: Callable[[], str | None]) -> tuple[str, bytes]:
        reason = check()
        if reason is None:
            return "200 OK", b"ok\n"
        return "503 Service Unavailable", f"{reason}\n".encode()

    def _alive(self) -> str | None:
        try:
            self._call(asyncio.sleep(0), _LOOP_S)
        except LateError:
            return f"the event loop has not responded within {_LOOP_S:g} s: a job blocks it"
        return None

    def _ready(self) -> str | None:
        if self._runtime.ending.is_set():
            return "the worker is shutting down"
        if (reason := self._alive()) is not None:
            return reason
        looking = SQL.on(self._runtime.broker).fetch("registered", self._runtime.worker_id)
        try:
            found = self._call(looking, _DATABASE_S)
        except LateError:
            return f"the database has not responded within {_DATABASE_S:g} s"
        for age_s, late in found:
            return f"no heartbeat has been stored for {age_s:.0f} s" if late else None
        return "the worker is not registered"

    def _call(self, work: Coroutine[Any, Any, T], timeout_s: float) -> T:
        called = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return called.result(timeout_s)
        except LateError:
            called.cancel()  # each probe would otherwise occupy one more session
            raise


class MetricsEndpoint:
    """Responds to each request with the totals of the current hour and the gauges.

    :param chancy: must be open while requests come in.
    """

    def __init__(self, chancy: Application) -> None:
        self._chancy = chancy
        self._looking = asyncio.Lock()
        self._body, self._until = b"", float("-inf")

    async def __call__(
        self,
        scope: Message,
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        if scope["type"] != "http":
            raise ValueError("the metrics endpoint serves HTTP only")
        status, kind = 200, CONTENT_TYPE_LATEST
        try:
            body = await self._get()
        except ChancyError as error:
            status, kind, body = 503, "text/plain; charset=utf-8", f"{error}\n".encode()
        headers = [(b"content-type", kind.encode()), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _get(self) -> bytes:
        clock = self._chancy.clock
        async with self._looking:
            if clock.monotonic() >= self._until:
                broker = self._chancy.broker
                totals = await MetricsTable(broker).read_hour()
                found = await gauges.look(broker)
                registry = CollectorRegistry()
                registry.register(JobsCollector(lambda: totals, lambda: found, leads=False))
                self._body = generate_latest(registry)
                self._until = clock.monotonic() + _KEEP_S
            return self._body
