"""Panels for a dashboard: the progress of streams, and services."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from chancy.plugin.runtime import Application, Panel
from chancy.plugins.redis.services.services import Services
from chancy.plugins.redis.streams.inspection import Inspection, PartitionReport, processors
from chancy.plugins.redis.streams.streams import Streams

#: The most services that are listed.
_SERVICES = 200


def panels(streams: Streams, services: Services) -> Sequence[Panel]:
    """The panels for the declared streams and services."""

    async def of_streams(_: Application) -> Sequence[Mapping[str, Any]]:
        return [
            _partition(report)
            for stream in streams.streams
            for name in await processors(stream)
            for report in await Inspection(stream, name).report()
        ]

    async def of_services(_: Application) -> Sequence[Mapping[str, Any]]:
        listing = await services.list()
        ids = [*listing.active, *listing.new, *listing.ended][:_SERVICES]
        found = [await services.get(id) for id in ids]
        return [
            {
                "service": one.name,
                "id": one.id,
                "state": str(one.state),
                "requested": one.wanted,
                "owner": one.owner,
                "last update": _time(one.last_update),
            }
            for one in found
            if one is not None
        ]

    made = []
    if streams.streams:
        made.append(Panel(name="redis-streams", title="Streams", rows=of_streams))
    if services.kinds:
        made.append(Panel(name="redis-services", title="Services", rows=of_services))
    return made


def _partition(report: PartitionReport) -> Mapping[str, Any]:
    return {
        "stream": report.stream,
        "processor": report.processor,
        "partition": report.partition,
        "lag": None if report.lag < 0 else f"{report.lag}+" if report.at_least else report.lag,
        "pending": report.pending,
        "oldest s": round(report.idle_s, 1) if report.pending else None,
        "dead letters": report.dead,
        "dead letters dropped": report.dead_dropped,
        "dropped": report.dropped,
        "owner": report.owner,
        "stopped by": report.parked or report.halted,
    }


def _time(at: int | None) -> str | None:
    return None if at is None else f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S} UTC"
