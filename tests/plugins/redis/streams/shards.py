"""A cluster whose primaries have replicas, for tests that kill primaries and move slots."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

import redis

from tests.support.redis_commands import command_sync
from tests.support.redis_fixtures import RedisClusterServers, RedisServer, until

_KEYS_AT_ONCE = 100


def tell(server: RedisServer, *parts: str | int | bytes) -> Any:
    """Send a command to this node."""
    with closing(server.client()) as client:
        return command_sync(client, *parts)


@dataclass
class Shards:
    """Primaries that share the slots, and a replica of each."""

    primaries: RedisClusterServers
    replicas: list[RedisServer]

    def start(self) -> None:
        self.primaries.start()
        first, total = self.primaries.nodes[0], 2 * len(self.replicas)
        for replica in self.replicas:
            replica.begin()
        for replica in self.replicas:
            until(replica.answers, "a replica does not answer:\n", replica.log)
            tell(first, "CLUSTER MEET", "127.0.0.1", replica.port, *replica.bus)
        everyone = [*self.primaries.nodes, *self.replicas]
        for node in everyone:
            until(partial(self._known, node, total), "a replica is not known:\n", node.log)
        for primary, replica in zip(self.primaries.nodes, self.replicas, strict=True):
            tell(replica, "CLUSTER REPLICATE", self.name(primary))
        for replica in self.replicas:
            until(partial(self._follows, replica), "a replica does not follow:\n", replica.log)
        for node in everyone:
            until(partial(self._counted, node), "a replica is not told of:\n", node.log)

    def _known(self, node: RedisServer, count: int) -> bool:
        return int(tell(node, "CLUSTER INFO")["cluster_known_nodes"]) == count

    def _counted(self, node: RedisServer) -> bool:
        return str(self._nodes(node)).count("slave ") >= len(self.replicas)

    def _nodes(self, node: RedisServer) -> str:
        with closing(node.client()) as client:
            client.response_callbacks.clear()
            return bytes(command_sync(client, "CLUSTER NODES")).decode()

    def _follows(self, replica: RedisServer) -> bool:
        told = tell(replica, "INFO", "replication")
        return bool(told["role"] == "slave" and told["master_link_status"] == "up")

    def name(self, node: RedisServer) -> str:
        """The id of a node in the cluster."""
        return bytes(tell(node, "CLUSTER MYID")).decode()

    def home(self, key: str) -> tuple[RedisServer, RedisServer]:
        """The first primary of the slot of a key, and its replica."""
        nodes = self.primaries.nodes
        slot = int(tell(nodes[0], "CLUSTER KEYSLOT", key))
        at = min(slot // -(-16_384 // len(nodes)), len(nodes) - 1)
        return nodes[at], self.replicas[at]

    def leads(self, node: RedisServer) -> bool:
        """Whether a node is a primary now, and the cluster is complete."""
        try:
            whole = str(tell(node, "CLUSTER INFO")["cluster_state"]) == "ok"
            return whole and bool(tell(node, "ROLE")[0] == b"master")
        except redis.ConnectionError:
            return False

    def move(self, slot: int, source: RedisServer, target: RedisServer) -> None:
        """Move a slot with all its keys, as a resharding does, while others use it."""
        self.open(slot, source, target)
        self.shut(slot, source, target)

    def open(self, slot: int, source: RedisServer, target: RedisServer) -> None:
        """Begin to move a slot: the source redirects requests for missing keys to the target."""
        tell(target, "CLUSTER SETSLOT", slot, "IMPORTING", self.name(source))
        tell(source, "CLUSTER SETSLOT", slot, "MIGRATING", self.name(target))

    def shut(self, slot: int, source: RedisServer, target: RedisServer) -> None:
        """Move the remaining keys, and announce the new owner to all nodes."""
        name = self.name(target)
        while keys := self._keys(source, slot):
            tell(source, "MIGRATE", "127.0.0.1", target.port, "", 0, 5_000, "KEYS", *keys)
        for node in (target, source, *self.primaries.nodes):
            tell(node, "CLUSTER SETSLOT", slot, "NODE", name)

    def _keys(self, node: RedisServer, slot: int) -> list[bytes]:
        """Some keys of a slot as bytes: the client would decode them."""
        with closing(node.client()) as client:
            client.response_callbacks.clear()
            found: list[bytes] = command_sync(client, "CLUSTER GETKEYSINSLOT", slot, _KEYS_AT_ONCE)
            return found

    def close(self) -> None:
        self.primaries.close()
        for replica in self.replicas:
            replica.close()
