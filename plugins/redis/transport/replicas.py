"""Scripts that succeed only when enough replicas have received their writes."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from redis import Redis, RedisCluster
from redis.exceptions import MovedError, NoScriptError, RedisError

from chancy.errors import BrokerUnavailable
from chancy.plugins.redis.transport.clients import Client, command_sync
from chancy.plugins.redis.transport.scripts import ScriptCall, Value


def heard(client: Client, call: ScriptCall, replicas: int, wait_s: float) -> Any:
    """Run a script, and wait until its writes have reached `replicas` replicas.

    :param wait_s: most seconds to wait for the replicas.
    :raises BrokerUnavailable: fewer replicas have the writes; they may still be durable.
    """
    if not isinstance(client, RedisCluster):
        return _tell(client, call, replicas, wait_s)
    key = str(call.keys[0])
    try:
        return _tell(_node(client, key), call, replicas, wait_s)
    except MovedError:
        _look_around(client, key)
        return _tell(_node(client, key), call, replicas, wait_s)
    except (RedisError, OSError):
        _look_around(client, key)
        raise


def _tell(client: Redis, call: ScriptCall, replicas: int, wait_s: float) -> Any:
    script = call.script
    try:
        return _send(client, ("EVALSHA", script.digest), call, replicas, wait_s)
    except NoScriptError:
        return _send(client, ("EVAL", script.text), call, replicas, wait_s)


def _send(
    client: Redis, how: tuple[str, str], call: ScriptCall, replicas: int, wait_s: float
) -> Any:
    """Send a script and ``WAIT`` on one connection, since ``WAIT`` covers the writes of its own.

    A script whose work was done by an earlier attempt writes nothing, and ``WAIT`` would return
    immediately: hence the ``SET``.
    """
    untyped: Any = client
    with untyped.pipeline(transaction=False) as together:
        together.execute_command("SET", f"{call.keys[0]!s}:lasting", "")
        together.execute_command(*how, len(call.keys), *call.keys, *call.args)
        together.execute_command("WAIT", replicas, max(1, int(wait_s * 1000)))
        written, answer, have = together.execute(raise_on_error=False)
    for reply in (written, answer, have):
        if isinstance(reply, Exception):
            raise reply
    if have < replicas:
        raise BrokerUnavailable(
            f"only {have} of the {replicas} replicas required for services have received "
            f"{call.script.name} within {wait_s:g} s, so it is unknown whether it is durable: "
            "check INFO replication"
        )
    return answer


def _node(client: RedisCluster, key: Value) -> Redis:
    untyped: Any = client
    found: Redis = untyped.get_redis_connection(untyped.get_node_from_key(key))
    return found


def _look_around(client: RedisCluster, key: str) -> None:
    """Let the client find the node that has the key now, with a command that changes nothing."""
    with suppress(RedisError, OSError):
        command_sync(client, "EXISTS", key)
