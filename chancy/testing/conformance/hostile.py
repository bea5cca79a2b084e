"""Contract tests with hostile values: stored unchanged, or only their job fails."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from chancy.attempt.failure import Failure
from chancy.attempt.settlement import Settlement
from chancy.queue.queue import Queue
from chancy.states import State
from chancy.testing.conformance.bench import Bench, Promises, prepared, settlement

#: Strings that JSON and Postgres can hold, and that often break programs.
HOSTILE_TEXT = {
    "quotes": "it's \"quoted\" `twice` $$ $1 $body$ 'or 1=1; drop table jobs; --",
    "placeholders": "%s %(name)s %% {} {0} {schema} :name ? ${HOME} #{x}",
    "path": "../../etc/passwd\\..\\con /dev/null file://",
    "lines": "one\ntwo\r\nthree\ttab\x0bvertical\u2028separator\u0085next",
    "ansi": "\x1b[31mred\x1b[0m\x07\x08\x1b]0;title\x07",
    "bidi": "\u202eevil\u202c \u2066isolate\u2069 \ufeffbom",
    "unicode": "ünï¢ødé 漢字 🏳️\u200d🌈 é e\u0301 \U0010ffff",
    "backslashes": "\\ \\\\ \\n \\u0000 \\\\u0000 \\x00",
    "markup": "<script>alert(1)</script> &amp; ]]> <!--",
    "null": "null NULL NaN None true 0 '' {}",
    "empty": "",
    "spaces": "  \t leading and trailing \n ",
    "long": "x" * 10_000 + "é",
}
#: Names that `chancy.checks` allows.
QUEUE_NAMES = ["a", "0", "-", "..", "a.b:c/d-e_F", "../..", "--", "select", "x" * 128]
#: Fields of settlements that ``jsonb`` and timestamps cannot hold.
UNSTORABLE: dict[str, dict[str, Any]] = {
    "result-nul": {"result": '"\\u0000"'},
    "result-surrogate": {"result": '"\\ud800"'},
    "result-no-json": {"result": "not json"},
    "result-empty": {"result": ""},
    "result-nan": {"result": "NaN"},
    "result-raw-nul": {"result": '"\x00"'},
    "meta-array": {"meta": "[1]"},
    "meta-text": {"meta": '"text"'},
    "meta-null": {"meta": "null"},
    "meta-no-json": {"meta": "{"},
    "meta-nul": {"meta": '{"a": "\\u0000"}'},
}


class HostilePromises(Promises):
    async def test_hostile_text_comes_back_as_it_was(self, bench: Bench) -> None:
        for text in HOSTILE_TEXT.values():
            value = {"value": text, text: [text]}
            [claim] = await bench.running(
                prepared(
                    arguments=json.dumps(value, ensure_ascii=False),
                    meta=json.dumps(value),
                    func=text[:200] or "x",
                )
            )
            assert claim.func == (text[:200] or "x")
            assert json.loads(claim.arguments or "") == value
            assert json.loads(claim.meta or "") == value
            ending = settlement(claim, State.SUCCEEDED)
            await bench.settle(ending._replace(result=json.dumps(text)))
            found = await bench.job(claim.id)
            assert (found.arguments, found.meta, found.result) == (value, value, text)
            assert found.func == claim.func

    async def test_every_allowed_name_of_a_queue_works(self, bench: Bench) -> None:
        for name in QUEUE_NAMES:
            await bench.broker.declare(Queue(name=name))
            await bench.push(prepared(queue=name))
            [claim] = await bench.claim(queue=name)
            assert claim.queue == name
            assert (await bench.broker.counts())[name].running == 1
            assert await bench.broker.pause(name)
            assert await bench.broker.delete_queue(name)

    async def test_a_settlement_that_cannot_be_stored_fails_alone(self, bench: Bench) -> None:
        for fields in UNSTORABLE.values():
            before, bad, after = await bench.running(*(prepared() for _ in range(3)))
            batch = [
                settlement(before, State.SUCCEEDED)._replace(result="1"),
                settlement(bad, State.SUCCEEDED)._replace(**fields),
                settlement(after, State.SCHEDULED)._replace(delay_s=60.0, meta='{"n": 1}'),
            ]
            assert await bench.settle(*batch) == frozenset()
            await _check_failed_with_reason(bench, batch[1])
            found = await bench.broker.get([before.id, after.id])
            assert (found[before.id].state, found[before.id].result) == (State.SUCCEEDED, 1)
            assert (found[after.id].state, found[after.id].meta) == (State.SCHEDULED, {"n": 1})
            # The reply was lost, so the batch is sent again.
            assert await bench.settle(*batch) == frozenset()

    async def test_a_retry_that_cannot_be_stored_is_not_retried(self, bench: Bench) -> None:
        [bad] = await bench.running()
        ending = settlement(bad, State.SCHEDULED)._replace(delay_s=1.0, meta="[]")
        assert await bench.settle(ending) == frozenset()
        await _check_failed_with_reason(bench, ending)

    async def test_many_that_cannot_be_stored_fail_each(self, bench: Bench) -> None:
        claims = await bench.running(*(prepared() for _ in range(9)))
        batch = [
            settlement(claim, State.SUCCEEDED)._replace(result='"\\u0000"' if n % 2 else "true")
            for n, claim in enumerate(claims)
        ]
        assert await bench.settle(*batch) == frozenset()
        found = await bench.broker.get([claim.id for claim in claims])
        expected = [State.FAILED if n % 2 else State.SUCCEEDED for n in range(9)]
        assert [found[claim.id].state for claim in claims] == expected

    async def test_a_hostile_failure_fails_its_job_only(self, bench: Bench) -> None:
        for text in ("nul \x00", "half \ud800 a pair", *HOSTILE_TEXT.values()):
            bad, good = await bench.running(prepared(), prepared())
            # Built directly, as `Failure.of` and `Failure.named` would sanitize it.
            failure = Failure(types=(f"shop.{text}",), message=text, trace=text)
            stale = await bench.settle(
                settlement(bad, State.FAILED)._replace(failure=failure),
                settlement(good, State.SUCCEEDED),
            )
            assert stale == frozenset()
            assert await bench.state(good.id) is State.SUCCEEDED
            found = await bench.job(bad.id)
            assert found.state is State.FAILED
            assert len(found.errors) == 1

    async def test_a_delay_beyond_the_calendar_leaves_a_job_that_can_be_read(
        self, bench: Bench
    ) -> None:
        # The one that is due comes last: a later claim would take it.
        for delay_s in (1e12, 1e300, float("inf"), float("nan"), -1e300):
            bad, good = await bench.running(prepared(), prepared())
            stale = await bench.settle(
                settlement(bad, State.SCHEDULED)._replace(delay_s=delay_s),
                settlement(good, State.SUCCEEDED),
            )
            assert stale == frozenset()
            found = await bench.broker.get([bad.id, good.id])
            assert found[bad.id].state in (State.SCHEDULED, State.FAILED)
            assert found[good.id].state is State.SUCCEEDED
            await bench.broker.promote(10)

    async def test_extremes_of_time_and_number(self, bench: Bench) -> None:
        values = {
            "big": 10**300,
            "exact": 2**63 + 1,
            "small": 5e-324,
            "float": 0.1,
            "neg": -(2**70),
        }
        job = prepared(
            arguments=json.dumps(values), run_at=datetime(1, 1, 1, tzinfo=UTC), priority=-100
        )
        [claim] = await bench.running(job)
        assert json.loads(claim.arguments or "") == values
        assert (await bench.job(job.id)).arguments == values


async def _check_failed_with_reason(bench: Bench, bad: Settlement) -> None:
    found = await bench.job(bad.id)
    assert found.state is State.FAILED
    assert "chancy.errors.StatementFailed" in found.errors[-1]["types"]
    assert found.errors[-1]["message"]
