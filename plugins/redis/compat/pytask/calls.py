"""``PyTaskHelpers``: control tasks from any process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from redis import Redis, RedisCluster

from chancy.errors import ConfigurationError
from chancy.plugins.redis.keys import named_keys
from chancy.plugins.redis.services.services import Services
from chancy.plugins.redis.transport.location import Client
from chancy.text import shown


class PyTaskHelpers:
    """Blocking commands for tasks; they raise the errors of `ServiceStore`.

    :param redis_instance: a redis-py client, a dict of its keyword arguments, or for a cluster a
        list of dicts with ``host`` and ``port`` of the nodes.
    :ivar services: the underlying `Services`.
    """

    def __init__(
        self,
        redis_instance: Any,
        task_set: str = "tasks",
        task_prefix: str = "task-",
        new_queue: str = "new-task",
        end_queue: str = "end-task",
    ) -> None:
        self.redis = client_of(redis_instance)
        keys = named_keys(
            waiting=new_queue,
            ended=end_queue,
            known=task_set,
            hashes=task_prefix,
            clustered=isinstance(self.redis, RedisCluster),
        )
        self.services = Services(self.redis, keys=keys)
        self._store = self.services.blocking

    def start_task(
        self, task_name: str, task_id: str | None = None, cleanup: bool = True, **data: Any
    ) -> str:
        """`ServiceStore.begin`."""
        return self._store.begin(task_name, data, id=task_id, cleanup=cleanup)

    def stop_task(self, task_id: str) -> None:
        """`ServiceStore.stop`."""
        self._store.stop(task_id)

    def reload_task(self, task_id: str) -> None:
        """`ServiceStore.reload`."""
        self._store.reload(task_id)

    def restart_task(self, task_id: str) -> None:
        """`ServiceStore.restart`."""
        self._store.restart(task_id)

    def restart_if_state(self, task_id: str, states: Iterable[str]) -> bool:
        """`ServiceStore.restart_if`."""
        return self._store.restart_if(task_id, [states] if isinstance(states, str) else states)

    def remove_task(self, task_id: str) -> None:
        """`ServiceStore.remove`."""
        self._store.remove(task_id)

    def get_task(self, task_id: str, keys: str | Sequence[str] | None = None) -> Any:
        """The stored hash of a task: one field, a list of fields, or a dict of all."""
        if isinstance(keys, str):
            return self._store.fields(task_id, [keys]).get(keys)
        if keys is None:
            return self._store.fields(task_id)
        found = self._store.fields(task_id, keys)
        return [found.get(key) for key in keys]

    def set_task(self, task_id: str, data: str | Mapping[str, Any], value: Any = None) -> None:
        """Set one or several fields of the hash; values other than strings are written as JSON."""
        self._store.write(task_id, {data: value} if isinstance(data, str) else data)

    def get_new_task_ids(self) -> list[str]:
        """`Listing.new`."""
        return self._store.list().new

    def get_end_task_ids(self) -> list[str]:
        """`Listing.ended`."""
        return self._store.list().ended

    def get_active_task_ids(self) -> list[str]:
        """`Listing.active`."""
        return self._store.list().active


def client_of(redis_instance: Any) -> Client:
    """The client for a `redis_instance` of pytask.

    :raises ConfigurationError: it is none of the accepted types.
    """
    if isinstance(redis_instance, Redis | RedisCluster):
        return redis_instance
    if isinstance(redis_instance, Mapping):
        return Redis(**redis_instance)
    if isinstance(redis_instance, list | tuple) and all(
        isinstance(node, Mapping) for node in redis_instance
    ):
        from redis.cluster import ClusterNode

        node_of: Any = ClusterNode
        return RedisCluster(
            startup_nodes=[node_of(node["host"], node["port"]) for node in redis_instance],
            require_full_coverage=False,
        )
    raise ConfigurationError(
        f"redis_instance={shown(redis_instance)} must be a redis-py client, a dict of its "
        "arguments, or a list of nodes"
    )
