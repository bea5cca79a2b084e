"""``chancy dead``."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from uuid import uuid4

import psycopg
import pytest

from tests.plugins.dead_letter.letters import failed, filed, letters
from tests.support.command import Answer, inside
from tests.support.sql import ask


def dead(dsn: str, *words: object, code: int = 0) -> Answer:
    return inside("dead", *words, code=code, dsn=dsn)


FOUND: list[tuple[tuple[str, ...], str]] = [
    ((), "abcd"),
    (("--queue", "mail"), "b"),
    (("--func", "shop.mail.send"), "c"),
    (("--error", "builtins.ValueError"), "d"),
    (("--error", "ValueError"), "d"),
    (("--older", "30m"), "ab"),
    (("--newer", "1800"), "cd"),
    (("--newer", "90m", "--older", "30m"), "b"),
    (("--queue", "async", "--newer", "30m"), "cd"),
    (("--where", "to=Ann", "--where", "n=2"), "b"),
    (("--func", "send"), "c"),
    (("--func", "shop.*"), "c"),
    (("--func", "shop_mail_send"), ""),
]


@pytest.fixture
def names(dsn: str) -> dict[str, str]:
    """Four letters by their id."""
    value = '[{"types": ["builtins.ValueError"], "message": "no"}]'
    (a,) = letters(dsn, ago="2 hours")
    (b,) = letters(dsn, ago="1 hour", queue="mail")
    (c,) = letters(dsn, ago="10 minutes", func="shop.mail.send")
    (d,) = letters(dsn, ago="1 minute", errors=value)
    ask(dsn, f"""update chancy.dead_letters set arguments = '{{"to": "Ann", "n": 2}}'
        where id = '{b}'""")  # fmt: skip
    return {str(id): name for id, name in zip((a, b, c, d), "abcd", strict=True)}


def listed(dsn: str, names: dict[str, str], *words: str) -> list[str]:
    return [names[one["id"]] for one in dead(dsn, "list", "--json", *words).json]


def test_dead_letters_are_found_by_what_they_are(dsn: str, names: dict[str, str]) -> None:
    for words, expected in (*FOUND, (("--limit", "2"), "cd")):
        # The last death first.
        assert listed(dsn, names, *words) == sorted(expected, reverse=True), words
    for words, expected in FOUND:
        said = dead(dsn, "replay", "--all", "--dry-run", "--json", *words).json
        assert said == {"dry_run": True, "replayed": len(expected)}, words


def test_dead_letters_are_replayed_by_what_they_are(dsn: str, names: dict[str, str]) -> None:
    words, expected = FOUND[7]
    said = dead(dsn, "replay", "--all", "--json", *words).json
    assert said == {"replayed": len(expected), "jobs": {}, "missed": []}
    assert set(listed(dsn, names)) == set("abcd") - set(expected)


def test_groups_are_listed_by_their_latest_failure_and_replayed_alone(dsn: str) -> None:
    for number, (ago, error) in enumerate(
        [("1 h", "KeyError"), ("2 m", "OSError"), ("3 m", "OSError")]
    ):
        value = json.dumps([{"types": [error], "message": f"order {number} is '{number}'"}])
        letters(dsn, ago=ago, errors=value.replace("'", "''"))
    first, second = dead(dsn, "groups", "--json").json
    assert (first["waiting"], second["waiting"]) == (2, 1)
    assert first["hours"] == [0] * 23 + [2]
    assert first["newest_id"] == dead(dsn, "list", "--limit", 1, "--json").json[0]["id"]
    page = dead(dsn, "groups", "--limit", 1)
    assert first["fingerprint"] in page.out
    assert f"--before {first['newest_id']}" in page.err
    assert dead(dsn, "groups", "--before", first["newest_id"], "--json").json == [second]
    dead(dsn, "groups", "--before", uuid4(), code=1)
    mark = ("--fingerprint", first["fingerprint"])
    assert [one["error"] for one in dead(dsn, "list", "--json", *mark).json] == ["OSError"] * 2
    assert dead(dsn, "replay", "--json", *mark).json["replayed"] == 2
    assert dead(dsn, "purge", "--yes", "--json", "--state", "all", *mark).json["purged"] == 2
    assert dead(dsn, "groups", "--json").json == [second]


def test_each_command_files_what_has_no_letter_yet(dsn: str) -> None:
    (a,) = failed(dsn)
    assert [one["id"] for one in dead(dsn, "list", "--json").json] == [str(a)]
    (b,) = failed(dsn)
    assert dead(dsn, "show", b, "--json").json["id"] == str(b)
    (c,) = failed(dsn)
    assert dead(dsn, "replay", c, "--json").json["replayed"] == 1
    (d,) = failed(dsn)
    assert dead(dsn, "purge", d, "--json").json == {"purged": 1}
    assert filed(dsn) == {a, b, c}


def test_a_list_is_readable_and_paged(dsn: str) -> None:
    ids = letters(dsn, 5)
    said = dead(dsn, "list", "--limit", 3)
    head, *rows = said.out.splitlines()
    assert head.split() == [
        *("id", "died", "queue", "function", "reason", "error", "message", "replayed", "as")
    ]
    assert [row.split()[0] for row in rows] == [str(id) for id in ids[:1:-1]]
    assert "shop.Oops  oops" in rows[0]
    assert said.err == f"next page: --before {ids[2]}\n"
    page = dead(dsn, "list", "--before", ids[2], "--json").json
    assert [one["id"] for one in page] == [str(ids[1]), str(ids[0])]


def test_one_is_shown_with_its_failures_and_where_it_came_from_and_went(dsn: str) -> None:
    one = {"types": ["shop.Oops"], "message": "\x1b[31m first", "trace": "at\nx", "attempt": 1}
    two = {"types": ["shop.Late"], "message": "second", "trace": "at y", "attempt": 2}
    (id,) = letters(dsn, errors=json.dumps([one, two]))
    before = uuid4()
    ask(
        dsn,
        "update chancy.dead_letters set crashes = 1, host = 'there', meta = jsonb_build_object("
        "'dead_letters', jsonb_build_object('replay_of', %s::text), 'unknown_function', 7,"
        " 'progress', 1, 'snoozes', 3, 'rate_limited', 4, 'shop', 2,"
        " 'checkpoints', jsonb_build_object('pay', 5))",
        [before],
    )
    (job,) = dead(dsn, "replay", id, "--json").json["jobs"].values()
    found = dead(dsn, "show", id, "--json").json
    expected = {
        "id": str(id),
        "func": "tests.support.jobs.note",
        "arguments": {"value": 1},
        "reason": "failed",
        "error": "shop.Late",
        "errors": [one, two],
        "crashes": 1,
        "host": "there",
        "replayed_as": job,
        "replays": 1,
        "replay_of": str(before),
    }
    assert expected.items() <= found.items()
    text = dead(dsn, "show", id).out
    assert "\x1b" not in text
    assert "attempt 1" in text
    assert "shop.Oops: \\x1b[31m first\n  at\n  x\n" in text
    assert job in text
    ((meta,),) = ask(dsn, "select meta from chancy.jobs")
    # What counted against the job is gone; what its owner wrote, and what it has done, is there.
    assert meta == {
        "shop": 2,
        "checkpoints": {"pay": 5},
        "dead_letters": {"replay_of": str(id), "replays": 1},
    }


def test_a_replay_wakes_the_workers_of_its_queue(dsn: str) -> None:
    (id,) = letters(dsn)
    with psycopg.connect(dsn, autocommit=True) as listener:
        [(channel,)] = listener.execute("select chancy.channel()").fetchall()
        listener.execute(f'listen "{channel}"'.encode())
        dead(dsn, "replay", id)
        heard = [one.payload for one in listener.notifies(timeout=10.0, stop_after=1)]
    assert [one.split()[0] for one in heard] == ["w:async"]


def test_a_replay_is_refused_the_second_time_unless_it_is_forced(dsn: str) -> None:
    (id,) = letters(dsn)
    said = dead(dsn, "replay", id).out.splitlines()
    assert said[0] == "1 replayed"
    assert said[2].split()[0] == str(id)
    again = dead(dsn, "replay", id, code=1)
    assert again.out == "0 replayed\n"
    assert f"{id} was not replayed" in again.err
    assert dead(dsn, "replay", "--all").out == "0 replayed\n"
    terms = "--force", "--to-queue", "slow", "--max-attempts", 9
    for words in ([], ["--dry-run"]):
        refused = dead(dsn, "replay", id, *terms, *words, code=2).err
        assert refused == "chancy: queue 'slow' is not declared: declare it first\n"
    inside("queue", "declare", "slow", dsn=dsn)
    dead(dsn, "replay", id, *terms)
    rows = ask(dsn, "select queue, max_attempts from chancy.jobs order by pos")
    assert rows == [("async", 3), ("slow", 9)]
    assert dead(dsn, "show", id, "--json").json["replays"] == 2
    assert [one["id"] for one in dead(dsn, "list", "--state", "replayed", "--json").json] == [
        str(id)
    ]
    assert dead(dsn, "list", "--json").json == []


def test_a_rate_spreads_the_jobs_over_time(dsn: str) -> None:
    letters(dsn, 601)
    said = dead(dsn, "replay", "--all", "--rate", "600/m")
    assert said.err.splitlines() == ["500 replayed so far", "601 replayed so far"]
    rows = ask(
        dsn,
        "select state, extract(epoch from run_at - min(pushed_at) over ())::float"
        " from chancy.jobs order by pos",
    )
    assert rows[0] == (0, None)
    assert {state for state, _ in rows[1:]} == {2}
    delays = [delay for _, delay in rows[1:]]
    expected = [n / 10 for n in range(1, 601)]
    # Later batches count from the first one.
    assert all(abs(a - b) < 5 for a, b in zip(delays, expected, strict=True))
    # Of a batch, in order; the next one counts from its own push. A slow machine only stretches it.
    assert delays[:499] == sorted(delays[:499])
    assert delays[498] - delays[0] > 49.79


def test_the_limit_takes_the_oldest(dsn: str) -> None:
    ids = letters(dsn, 3)
    assert dead(dsn, "replay", "--all", "--limit", 2, "--json").json["replayed"] == 2
    assert [one["id"] for one in dead(dsn, "list", "--json").json] == [str(ids[2])]


def test_purging_many_asks_for_a_word(dsn: str) -> None:
    ids = letters(dsn, 4)
    dead(dsn, "replay", ids[0])
    refused = dead(dsn, "purge", "--all", code=2)
    assert "this deletes 3 dead letters permanently: pass --yes" in refused.err
    assert "deletes 2 dead" in dead(dsn, "purge", "--all", "--limit", 2, code=2).err
    assert len(filed(dsn)) == 4
    assert dead(dsn, "purge", ids[1], "--json").json == {"purged": 1}
    said = dead(dsn, "purge", ids[1], ids[2], code=1)
    assert said.err == "chancy: 1 of the ids has no dead letter\n"
    assert dead(dsn, "purge", "--state", "replayed", "--queue", "async", "--yes").out == (
        "1 purged\n"
    )
    assert filed(dsn) == {ids[3]}
    assert dead(dsn, "purge", "--all", "--yes", "--json").json == {"purged": 1}


def test_no_is_one_and_a_mistake_is_two(dsn: str) -> None:
    nobody = uuid4()
    assert dead(dsn, "show", nobody, code=1).err == f"chancy: there is no dead letter {nobody}\n"
    for words, why in (
        (("replay",), "pass ids, filters"),
        (("purge", "--yes"), "pass ids, filters"),
        (("replay", nobody, "--all"), "pass either ids"),
        (("replay", "--all", "--rate", "fast"), "is not a rate"),
        (("replay", "--all", "--rate", "0"), "'0' is out of range: from 0.001/s to 100,000/s"),
        (("replay", "--all", "--rate", "1/h"), "'1/h' is out of range: from 3.6/h"),
        (("replay", "--all", "--to-queue", "a b"), "is not a valid queue name"),
        (("list", "--older", "1y"), "is not an age"),
        (("list", "--newer", "99999d"), "must be an age"),
        (("list", "--limit", "1001"), "1001"),
        (("show", "x"), "x"),
    ):
        assert why in dead(dsn, *words, code=2).err
    assert ask(dsn, "select 1 from chancy.jobs") == []


def test_times_are_iso_and_what_stands_in_a_row_breaks_nothing(dsn: str) -> None:
    odd = letters(dsn, errors='"no list"', func="x" * 3_000, arguments='"text"')
    odd += letters(dsn, errors="[7]")
    odd += letters(dsn, errors='[{"types": "no", "message": {"a": 1}}]')
    ask(dsn, "update chancy.dead_letters set meta = '[1]', limits = '3'")
    found = dead(dsn, "list", "--json").json
    assert len(found) == 3
    assert {one["reason"] for one in found} == {"failed"}
    for one in found:
        assert datetime.fromisoformat(one["died_at"]).utcoffset() == timedelta(0)
        assert dead(dsn, "show", one["id"]).out
    dead(dsn, "list")
    assert dead(dsn, "replay", "--all", "--json").json["replayed"] == 3
