"""Runs the scripts of services from threads."""

from __future__ import annotations

from chancy.plugins.redis.keys import ServiceKeys
from chancy.plugins.redis.transport.redis_client import RedisClient, Reply, parsed
from chancy.plugins.redis.transport.scripts import Value

#: Most seconds for a reply with the writes of a script on its replicas, which usually takes a
#: millisecond.
_LASTING_S = 2.0


class ServiceLink:
    """The client and the keys of services. Thread-safe.

    :param timeout_s: seconds to wait for a reply; by default those of the settings.
    :ivar replicas: replicas that must have received the writes of a script before it succeeds.
    """

    def __init__(
        self,
        redis: RedisClient,
        keys: ServiceKeys,
        *,
        timeout_s: float | None = None,
        replicas: int = 0,
    ) -> None:
        self.redis = redis
        self.keys = keys
        self.replicas = replicas
        self._timeout_s = timeout_s

    def within(self, timeout_s: float) -> ServiceLink:
        """The same with this timeout."""
        return ServiceLink(self.redis, self.keys, timeout_s=timeout_s, replicas=self.replicas)

    def run(self, script: str, *args: Value, lasting: bool = True) -> Reply:
        """Run ``lua/<script>.lua``. Raises the errors of `RedisClient`.

        :param lasting: whether its writes must reach replicas.
        """
        replicas = self.replicas if lasting else 0
        limit_s = self._timeout_s
        return self.redis.background.run(
            self.redis.run(
                f"services.{script}",
                self.keys.script_keys,
                (self.keys.hashes, *args),
                replicas=replicas,
                timeout_s=min(limit_s or _LASTING_S, _LASTING_S) if replicas else limit_s,
            )
        )

    def command(self, *parts: Value) -> Reply:
        """Send a plain command about these keys."""
        redis = self.redis
        reply = redis.raw(self.keys.waiting, *parts, timeout_s=self._timeout_s)
        return parsed(parts[0], redis.background.run(reply))
