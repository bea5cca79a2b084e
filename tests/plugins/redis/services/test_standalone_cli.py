"""``chancy redis service``, which needs Redis and no Postgres."""

from __future__ import annotations

from typing import Any

import pytest

from tests.plugins.redis.services.shop import Shop
from tests.support.command import Answer, inside


@pytest.mark.row("P27")
def test_services_are_commanded(alone: Shop) -> None:
    def run(*words: object, code: int = 0) -> Answer:
        return inside(
            *("redis", "service", *words, "--app", "tests.plugins.redis.streams.shop:make"),
            code=code,
            shop_redis=alone.url,
        )

    def got(id: str) -> Any:
        return run("get", id).json

    assert run("start", "beat", '{"pace": 2}', "--id", "b").out == "b\n"
    assert got("b")["data"] == {"pace": 2}
    run("set", "b", '{"pace": 3}')
    assert (got("b")["data"], got("b")["state"]) == ({"pace": 3}, "WAIT")
    assert run("stop", "b").out == "was WAIT\n"
    assert got("b")["state"] == "STOPPED"
    assert "not restarted" in run("restart", "b", "--if", "ERROR", code=1).out
    assert run("restart", "b", "--if", "STOPPED").out == "restarted\n"
    assert run("reload", "b", "--json").json == {"was": "WAIT"}
    assert "no service nowhere" in run("stop", "nowhere", code=1).err
    assert "not valid JSON" in run("start", "beat", "{", code=2).err

    def away(*words: object) -> str:
        return inside(
            *("redis", "service", *words, "--app", "tests.plugins.redis.streams.shop:make"),
            code=4,
            shop_redis="redis://127.0.0.1:1/0",
        ).err

    assert "127.0.0.1:1" in away("list")
    assert "chancy redis doctor" in away("stop", "b")

    kept = run("start", "give", "--keep", "--json").json["id"]
    assert got(kept)["cleanup"] is False
    assert run("list", "--json").json == {"new": ["b", kept], "active": [], "ended": []}
    assert "WAIT" in run("list").out
    assert run("remove", kept).out == "was WAIT\n"
    assert run("remove", kept).out == "did not exist\n"
    assert run("get", kept, code=1).json == {"error": f"there is no service {kept}"}
