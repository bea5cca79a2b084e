"""`chancy top`: one frame, frames in a terminal, and what they cost nothing to show."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import uuid
from collections.abc import Mapping

import psycopg
import pytest

from chancy import Chancy, Job, Queue
from chancy.app.activity import Lookout
from tests.support.command import command, environment, inside
from tests.support.proxy import Proxy
from tests.support.sql import ask
from tests.support.two_brokers import TwoBrokers
from tests.support.waiting import eventually_sync

FINISHED = (
    "insert into chancy.finished_jobs (id, pos, state, queue, priority, func, attempt,"
    " max_attempts, crashes, pushed_at, claimed_at, finished_at, errors) select gen_random_uuid(),"
    " 1, %(state)s, %(queue)s, 0, %(func)s, 1, 1, 0, now(), now() - interval '3 s', now(),"
    " %(errors)s from generate_series(1, %(count)s)"
)


def finish(dsn: str, count: int = 1, **columns: object) -> None:
    """Put finished jobs of a run of 3 s into the history."""
    values = {"state": 4, "queue": "default", "func": "shop.send", "errors": None}
    ask(dsn, FINISHED, {**values, "count": count, **columns})


def rows_of(out: str) -> Mapping[str, list[str]]:
    """The cells of each line by the first of them."""
    return {
        cells[0]: cells[1:]
        for line in out.splitlines()
        if (cells := re.split(r"\s{2,}", line.strip()))
    }


def test_a_frame_shows_queues_workers_failures_and_functions(dsn: str) -> None:
    inside("queue", "declare", "mail", dsn=dsn)
    inside("queue", "pause", "mail", dsn=dsn)
    for queue in "default", "default", "mail", "typo":
        inside("push", "shop.send", "--no-validate", "--queue", queue, dsn=dsn)
    error = '[{"types": ["ValueError"], "message": "[red]no\\u001b[31m luck\\nmore", "at": "%s"}]'
    with psycopg.connect(dsn) as connection:
        worker = uuid.uuid4()
        connection.execute(
            "insert into chancy.workers (id, host, pid, queues)"
            " values (%s, 'web-1', 17, '{default}')",
            [worker],
        )
        connection.execute(
            "insert into chancy.workers (id, host, pid, queues, beat_at, heartbeat_timeout_s)"
            " values (gen_random_uuid(), 'web-2', 17, '{default}', now() - interval '40 s', 30)"
        )
        connection.execute(
            "insert into chancy.jobs (id, pos, state, queue, func, worker_id, claimed_at) select"
            " gen_random_uuid(), 1, 1, 'default', 'shop.render', %s, now() - interval '42 s'"
            " from generate_series(1, 2)",
            [worker],
        )
        connection.execute(
            "insert into chancy.jobs (id, pos, state, queue, func, run_at, errors) select"
            " gen_random_uuid(), 1, 2, 'mail', 'shop.post', now() + interval '1 h',"
            " replace(%s, '%%s', (now() - interval '90 s')::text)::jsonb",
            [error],
        )
        connection.execute(
            "update chancy.jobs set pushed_at = now() - interval '12 min' where queue = 'typo'"
        )
    finish(dsn, 20)
    finish(dsn, state=5, func="shop.fail", errors=error)
    out = inside("top", "--once", dsn=dsn).out
    rows = rows_of(out)
    head = out.splitlines()[0]
    assert "schema chancy" in head
    assert "1 worker, 1 dead " in head
    assert "2.1 jobs/s in the last 10 s" in head
    assert rows["typo"][:3] == ["not declared", "1", "12 min"]
    assert rows["mail"][:2] == ["paused", "1"]
    assert rows["mail"][3:] == ["0", "1", "0", "0.0", "0"]
    assert rows["default"][:2] == ["active", "2"]
    assert rows["default"][3:] == ["2", "0", "0", "2.1", "1"]
    order = [line.partition(" ")[0] for line in out.splitlines()]
    assert order.index("typo") < order.index("default") < order.index("mail")
    host, runs, *rest = rows[str(worker)]
    assert (host, rest[:2]) == ("web-1", ["17", "1"])
    assert re.fullmatch(r"shop\.render ×2 4\d s", runs)
    assert re.search(r"web-2 .* 4\d s ago, dead\n", out)
    retried = r"9\d s +mail +shop\.post +retried +ValueError: \[red\]no\\x1b\[31m luck\n"
    assert re.search(retried, out)
    assert re.search(r"shop\.fail +failed +ValueError: \[red\]no\\x1b\[31m luck\n", out)
    assert rows["shop.fail"] == ["1", "1", "3.0 s", "3.0 s"]
    assert rows["shop.send"] == ["20", "0", "3.0 s", "3.0 s"]


async def test_rates_are_those_since_the_last_look(dsn: str) -> None:
    brief = Queue(name="brief", keep_finished=False)
    finish(dsn, 30)
    async with Chancy(dsn, queues=[brief]) as chancy:
        await chancy.declare(brief)
        lookout = Lookout(chancy)
        first = {queue.name: queue for queue in (await lookout.look()).queues}
        assert first["default"].per_s == 3.0
        assert first["brief"].per_s is None
        finish(dsn, 5)
        second = await lookout.look()
        [rate] = [queue.per_s for queue in second.queues if queue.name == "default"]
        assert rate == pytest.approx(5 / second.since_s)
        assert (await lookout.look()).queues[1].per_s == 0


async def test_queues_of_other_brokers_are_shown(dsn: str) -> None:
    far = Queue(name="far", broker="memory")
    plugin = TwoBrokers()
    async with Chancy(dsn, queues=[far], plugins=[plugin]) as chancy:
        await chancy.declare(far)
        await chancy.push(Job(func="shop.send").with_queue("far"), validate=False)
        looked = await Lookout(chancy).look()
        [found] = [queue for queue in looked.queues if queue.name == "far"]
        assert found.backlog is not None
        assert (found.backlog.pending, found.backlog.oldest_s, found.per_s) == (1, None, None)
        plugin.away = True
        assert (await Lookout(chancy).look()).away == {"memory": "the other broker is away"}


def test_held_jobs_are_due_jobs(dsn: str) -> None:
    ask(
        dsn,
        "insert into chancy.jobs (id, pos, state, queue, func, meta, pushed_at)"
        " select gen_random_uuid(), -min, state, 'ruled', 'a.b', meta::jsonb,"
        " now() - min * interval '1 min' from (values (15, 3, '{\"limits\": {}}'),"
        " (1, 3, '{\"unknown_function\": 1}'), (2, 0, '{}')) as v (min, state, meta)",
    )
    cells = rows_of(inside("top", "--once", dsn=dsn).out)["ruled"]
    assert cells[1:6] == ["1", "15 min", "0", "0", "2"]
    [listed] = [one for one in inside("queue", "list", "--json", dsn=dsn).json if one["held"]]
    assert (listed["name"], listed["pending"], listed["held"]) == ("ruled", 1, 2)
    assert listed["oldest_s"] == pytest.approx(900, abs=60)


def test_jobs_on_hold_are_not_due(dsn: str) -> None:
    """They wait for an approval or a payment, which more workers do not bring."""
    ask(
        dsn,
        "insert into chancy.jobs (id, pos, state, queue, func, meta, pushed_at)"
        " select gen_random_uuid(), -min, 3, queue, 'a.b', meta::jsonb,"
        " now() - min * interval '1 min' from (values (90, 'asked', '{\"hold\": \"k\"}'),"
        " (60, 'ruled', '{\"hold\": \"k\"}'), (15, 'ruled', null)) as v (min, queue, meta)",
    )
    rows = rows_of(inside("top", "--once", dsn=dsn).out)
    assert "asked" not in rows
    assert (rows["ruled"][2], rows["ruled"][5]) == ("15 min", "1")
    listed = {one["name"]: one for one in inside("queue", "list", "--json", dsn=dsn).json}
    assert (listed["asked"]["held"], listed["asked"]["oldest_s"]) == (1, None)
    found = {one["about"]: one for one in inside("doctor", "--json", dsn=dsn, code=1).json}
    assert "'asked'" not in found["queues"]["found"]


def test_counts_that_were_stopped_are_marked(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chancy.app.activity.CAP", 2)
    monkeypatch.setattr("chancy.cli.top.CAP", 2)
    for _ in range(3):
        inside("push", "shop.send", "--no-validate", "--delay", 60, dsn=dsn)
    cells = rows_of(inside("top", "--once", dsn=dsn).out)["default"]
    assert cells[1:6] == ["0", "-", "0", "2+", "0"]


def test_frames_follow_each_other_in_a_terminal_until_it_is_interrupted(
    dsn: str, proxy: Proxy
) -> None:
    shown = bytearray()
    outer, inner = pty.openpty()
    os.set_blocking(outer, False)

    def said(text: bytes) -> bool:
        try:
            shown.extend(os.read(outer, 65_536))
        except BlockingIOError:
            return False
        if text not in shown:
            return False
        shown.clear()
        return True

    with subprocess.Popen(
        command("top", "--interval", 0.2, "--dsn", proxy.dsn(dsn)),
        env=environment({"TERM": "xterm", "COLUMNS": "140", "LINES": "40"}),
        stdin=inner,
        stdout=inner,
        stderr=inner,
        start_new_session=True,
    ) as process:
        try:
            os.close(inner)
            for _ in range(2):
                eventually_sync(lambda: said(b"jobs/s in the last"))
            proxy.refuse()
            proxy.cut()
            eventually_sync(lambda: said(b"the last look failed, trying again"))
            proxy.heal()
            eventually_sync(lambda: said(b"jobs/s in the last"))
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 0
        finally:
            process.kill()
            os.close(outer)
