"""A TCP proxy that breaks connections between a client and Postgres on purpose.

It runs in threads, so that a blocked event loop of a test does not block the network as well.
Each connection has one thread, which alone uses its sockets: closing a socket that another thread
reads from would delay the reset until that read returns.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
from collections.abc import Callable
from enum import Enum
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit, urlunsplit

from tests.support.ports import free_port

# ReadyForQuery: the server has finished the request, including a commit.
_READY = b"Z\x00\x00\x00\x05"
_GLANCE_SECONDS = 0.01


class Mode(Enum):
    """Whether the proxy forwards bytes or drops them."""

    PASS = "pass"
    BLACK_HOLE = "black hole"


class _Link:
    """A client's connection and, unless it was accepted by the black hole, one to the server."""

    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket | None) -> None:
        self.proxy = proxy
        self.client = client
        self.server = server
        self.lossy = server is None  # bytes were lost: the connection is unusable
        self.cutting = threading.Event()
        self.dropped: bytearray | None = None  # the response that is being dropped
        self.thread = threading.Thread(target=self._run, name="proxy link", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        ends = [end for end in (self.client, self.server) if end is not None]
        reset = True
        try:
            while not self.cutting.is_set():
                for end in select.select(ends, [], [], _GLANCE_SECONDS)[0]:
                    data = end.recv(65536)
                    with self.proxy.lock:
                        if self.proxy.mode is Mode.BLACK_HOLE:
                            # The end of a connection is not forwarded either.
                            self.lossy = True
                            if not data:
                                ends.remove(end)
                        elif not data:
                            reset = False
                            return
                        elif self._forward(end, data):
                            return
                    if end is self.server and self.proxy.bytes_per_s is not None:
                        self.cutting.wait(len(data) / self.proxy.bytes_per_s)
        except OSError:
            pass
        finally:
            for other in (self.client, self.server):
                if other is not None:
                    if reset:
                        linger = struct.pack("ii", 1, 0)
                        other.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                    other.close()

    def _forward(self, origin: socket.socket, data: bytes) -> bool:
        """Forward a chunk; returns True once the connection must be reset."""
        if self.server is None:
            return False
        if origin is self.client:
            if self.proxy.take_trap(data):
                self.dropped = bytearray()
            self.server.sendall(data)
            return False
        if self.dropped is None:
            self.client.sendall(data)
            return False
        self.dropped += data
        if not self.dropped[:-1].endswith(_READY):
            return False
        self.proxy.reply_cut.set()
        return True


class Proxy:
    """Listens on `port` of 127.0.0.1 and forwards to the target.

    Every method takes effect before it returns. Thread-safe.
    """

    def __init__(self, target_host: str, target_port: int) -> None:
        self.target = (target_host, target_port)
        self.port = free_port()
        self.lock = threading.Lock()
        self.mode = Mode.PASS
        self.bytes_per_s: float | None = None
        """Rate of each connection from the server to the client; None: unlimited."""
        self.reply_cut = threading.Event()
        """Set once `cut_reply_after` has dropped a response."""
        self._trap: Callable[[bytes], bool] | None = None
        self._links: list[_Link] = []
        self._listener: socket.socket | None = None
        self._acceptor: threading.Thread | None = None
        self._listen()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def dsn(self, original: str) -> str:
        """The DSN through this proxy, without TLS, as the proxy reads the protocol."""
        parts = urlsplit(original)
        user = f"{parts.netloc.rpartition('@')[0]}@" if "@" in parts.netloc else ""
        query = f"{parts.query}&sslmode=disable" if parts.query else "sslmode=disable"
        return urlunsplit(parts._replace(netloc=f"{user}127.0.0.1:{self.port}", query=query))

    @property
    def connections(self) -> int:
        """The number of open connections through the proxy."""
        return sum(link.thread.is_alive() for link in self._links)

    def black_hole(self) -> None:
        """Drop all bytes in both directions; connections stay open, and new ones are accepted."""
        with self.lock:
            self.mode = Mode.BLACK_HOLE

    def cut(self) -> None:
        """Reset every connection. New ones are forwarded."""
        self._cut(lambda link: True)

    def refuse(self) -> None:
        """Refuse new connections. Open ones stay; reset them with `cut`."""
        listener, self._listener = self._listener, None
        if self._acceptor is not None:
            self._acceptor.join()
            self._acceptor = None
        if listener is not None:
            listener.close()

    def heal(self) -> None:
        """Forward again. Connections that lost bytes are reset, as in a real network."""
        with self.lock:
            self.mode = Mode.PASS
            self._trap = None
        self._cut(lambda link: link.lossy)
        self._listen()

    def cut_reply_after(self, matches: Callable[[bytes], bool]) -> None:
        """Drop one response: the one to the first message from a client that matches.

        The server receives and finishes the message (a commit is then durable). The response is
        dropped, the connection is reset, and `reply_cut` is set.

        :param matches: called with the bytes as they arrive, usually one whole round of the
            protocol; for example ``lambda sent: b"COMMIT" in sent``.
        """
        with self.lock:
            self.reply_cut.clear()
            self._trap = matches

    def close(self) -> None:
        """Stop listening and reset all connections."""
        self.refuse()
        self.cut()

    def take_trap(self, data: bytes) -> bool:
        """Whether these bytes match the trap, which is then removed. Called under the lock."""
        if self._trap is None or not self._trap(data):
            return False
        self._trap = None
        return True

    def _cut(self, chosen: Callable[[_Link], bool]) -> None:
        for link in [link for link in self._links if chosen(link)]:
            link.cutting.set()
            link.thread.join()

    def _listen(self) -> None:
        if self._listener is None:
            listener = socket.create_server(("127.0.0.1", self.port), backlog=128)
            listener.settimeout(_GLANCE_SECONDS)
            self._listener = listener
            self._acceptor = threading.Thread(
                target=self._accept, args=(listener,), name="proxy", daemon=True
            )
            self._acceptor.start()

    def _accept(self, listener: socket.socket) -> None:
        while self._listener is listener:
            with contextlib.suppress(TimeoutError):
                client, _ = listener.accept()
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                with self.lock:
                    lost = self.mode is Mode.BLACK_HOLE
                try:
                    server = None if lost else socket.create_connection(self.target)
                except OSError:
                    client.close()
                    continue
                if server is not None:
                    server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._links = [link for link in self._links if link.thread.is_alive()]
                self._links.append(_Link(self, client, server))
