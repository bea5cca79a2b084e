"""A port to listen on."""

from __future__ import annotations

import random
import socket


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody listens on now.

    It lies below the range that the system gives to outgoing connections (32768 and up on
    Linux, 49152 elsewhere). From inside that range, a client that keeps trying to reach a
    stopped server can be given the server's own port and be connected to itself.
    """
    while True:
        port = random.randint(15000, 32000)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
