"""Where settings of streams and processors come from: environment < application < declaration."""

from __future__ import annotations

from typing import Any

import pytest

from chancy.errors import ConfigurationError
from chancy.plugins.redis.settings import RedisSettings
from chancy.plugins.redis.streams.model.policy import Halt, Ignore
from chancy.plugins.redis.streams.model.record import Record
from chancy.plugins.redis.streams.processing.events import Events
from chancy.plugins.redis.streams.streams import Streams
from tests.plugins.redis.streams.orders import Order


class Tick(Record, primitive=True):
    number: int


async def work(events: Events[Order]) -> None:
    """A processor that does nothing."""


def made() -> Streams:
    return Streams(RedisSettings(prefix="t:"))


@pytest.mark.row("R47")
def test_each_source_goes_before_the_one_further_away(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "LEASE_S": "10",
        "PREFETCH": "3",
        "JOIN_DELAY_S": "7",
        "PARTITIONS": "5",
        "SIZE": "70",
        "CODEC": "msgpack",
        "STRATEGY": "contiguous",
        "GRACE_S": "",
    }.items():
        monkeypatch.setenv(f"CHANCY_STREAMS_{name}", value)
    streams = made()
    streams.defaults(prefetch=4, join_delay_s=0, size=80, policy=Ignore())
    stream = streams.stream("orders", record=Order, partition_by="order_id")
    assert (stream.partitions, stream.size, stream.full) == (5, 80, "block")
    assert stream.coding.name == "msgpack"
    ticks = streams.stream("ticks", record=Tick, partition_by="number", partitions=2, size=9)
    assert (ticks.partitions, ticks.size) == (2, 9)

    options = streams.processor(stream)(work).options
    assert (options.lease_s, options.prefetch, options.strategy) == (10, 4, "contiguous")
    assert (options.join_delay_s, options.grace_s, options.policy) == (0, 8.0, Ignore())
    own = streams.processor(
        stream, name="own", lease_s=20, grace_s=0, policy=Halt(), strategy="sticky"
    )(work).options
    assert (own.lease_s, own.grace_s, own.policy, own.strategy) == (20, 0, Halt(), "sticky")


@pytest.mark.row("R47")
@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("LEASE", "10", "CHANCY_STREAMS_LEASE is not a setting of streams: use CHANCY_STREAMS_"),
        ("LEASE_S", "long", "CHANCY_STREAMS_LEASE_S='long' must be a number"),
        ("PREFETCH", "1.5", "CHANCY_STREAMS_PREFETCH='1.5' must be a whole number"),
        ("LEASE_S", "0", "lease_s=0.0 must be a number from 0.2 to 3,600"),
        (
            "PARTITIONS",
            "0",
            "partitions=0 must be a whole number from 1 to 4,096",
        ),
        ("FULL", "wait", "the stream orders: full='wait' must be one of 'block', 'drop_oldest'"),
        ("STRATEGY", "even", "strategy='even' must be one of 'sticky', 'contiguous'"),
    ],
)
def test_invalid_environment_variables(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, reason: str
) -> None:
    monkeypatch.setenv(f"CHANCY_STREAMS_{name}", value)
    with pytest.raises(ConfigurationError, match=reason):
        declare()


def declare() -> None:
    streams = made()
    stream = streams.stream("orders", record=Order, partition_by="order_id")
    streams.processor(stream)(work)


@pytest.mark.row("R47")
def test_defaults_come_first_and_have_names() -> None:
    streams = made()
    unknown: Any = {"lease": 1}
    with pytest.raises(
        ConfigurationError, match="'lease' is not a setting with a default: use alarm_s"
    ):
        streams.defaults(**unknown)
    streams.stream("orders", record=Order, partition_by="order_id")
    with pytest.raises(ConfigurationError, match="orders is already declared"):
        streams.defaults(lease_s=1)
