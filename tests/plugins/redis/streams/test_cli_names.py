"""Names of processors that a person has mistyped."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from chancy.plugins.redis.streams.streams import Streams
from tests.plugins.redis.streams.test_cli import runner


@pytest.mark.parametrize(
    "words", [("lag", "--json"), ("members",), ("resume",), ("reset", "--yes")]
)
async def test_a_processor_that_there_is_not(shop_streams: Streams, words: Sequence[str]) -> None:
    """It would begin with the first reset, and hold all that comes for nobody."""
    run = runner(shop_streams.link.settings)
    name, *options = words
    (stream, _) = shop_streams.streams
    said = await asyncio.to_thread(run, name, "orders", "bil", *options, code=2)
    assert said.err == "chancy: the stream orders has no processor 'bil'; it has: bill\n"
    assert said.out == ""
    await stream.link.command("XGROUP", "CREATE", stream.keys.log(2), "ship", "0", "MKSTREAM")
    said = await asyncio.to_thread(run, name, "orders", "bil", *options, code=2)
    assert said.err.endswith("it has: bill, ship\n")
    # Another application's, which has begun or just joined.
    code = 1 if name == "resume" else 0
    await asyncio.to_thread(run, name, "orders", "ship", *options, code=code)
    if name != "reset":
        await stream.link.command("ZADD", stream.keys.members("new"), 9_999_999_999_999, "me")
        await asyncio.to_thread(run, name, "orders", "new", *options, code=code)
    said = await asyncio.to_thread(run, name, "refunds", "bill", *options, code=2)
    assert "processor 'bill'; none is declared, and none has started" in said.err
