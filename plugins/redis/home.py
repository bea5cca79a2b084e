"""The one server that has a shard: of a cluster, the node of its slot."""

from __future__ import annotations

from redis import exceptions as errors

from chancy.plugins.redis.settings import RedisSettings

#: Redirections that one call follows.
MOST_MOVES = 5
_MOST_KNOWN = 100


class Home:
    """Knows where to go, by what servers answered. Asks nobody itself.

    All keys of a shard share one slot, so that a single node has all of it: the scripts go there
    on connections of ours, as to a server that stands alone.
    """

    def __init__(self, settings: RedisSettings) -> None:
        self._settings = settings
        self._known = [settings.url]
        self._at = 0
        #: Counts the moves: what was made for an earlier one is to be let go of.
        self.moves = 0
        self.settings = settings.model_copy(update={"cluster": False})

    @property
    def clustered(self) -> bool:
        return self._settings.cluster

    def moved(self, error: errors.MovedError) -> None:
        """Follow a redirection."""
        self._go(self._url(error.host, error.port))

    def lost(self) -> None:
        """The node does not answer: the next of those that are known may know who has the slot."""
        if self.clustered:
            self._at = (self._at + 1) % len(self._known)
            self._go(self._known[self._at])

    def learn(self, nodes: bytes) -> None:
        """Take note of the nodes that ``CLUSTER NODES`` told of."""
        for line in nodes.decode().splitlines():
            fields = line.split(" ")
            host, _, port = fields[1].partition("@")[0].rpartition(":")
            if host and port.isdecimal() and "noaddr" not in fields[2]:
                url = self._url(host, int(port))
                if url not in self._known and len(self._known) < _MOST_KNOWN:
                    self._known.append(url)

    def _go(self, url: str) -> None:
        if url not in self._known:
            self._known = [*self._known[-_MOST_KNOWN + 1 :], url]
        self._at = self._known.index(url)
        self.settings = self.settings.model_copy(update={"url": url})
        self.moves += 1

    def _url(self, host: str, port: int) -> str:
        scheme, _, rest = self._settings.url.partition("://")
        login, at, _ = rest.rpartition("@")
        place = f"[{host}]" if ":" in host else host
        return f"{scheme}://{login}{at}{place}:{port}/0"
