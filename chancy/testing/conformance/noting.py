"""Contract tests of `Broker.update_meta`: notes of running jobs."""

from __future__ import annotations

import uuid
from functools import partial

import pytest

from chancy.attempt.claim import Claim
from chancy.attempt.settlement import Note
from chancy.errors import StatementFailed
from chancy.states import TRANSITIONS, State
from chancy.testing.conformance.bench import Bench, Promises, prepared, settlement

#: Strings that ``jsonb`` cannot merge into an object.
UNSTORABLE = {
    "array": "[1]",
    "text": '"text"',
    "null": "null",
    "nothing": "",
    "no-json": "{",
    "nan": '{"a": NaN}',
    "nul": '{"a": "\\u0000"}',
    "raw-nul": '{"a": "\x00"}',
    "surrogate": '{"a": "\\ud800"}',
}


def note(claim: Claim, meta: str = '{"said": 1}') -> Note:
    return Note(claim.id, claim.lease, meta)


class NotePromises(Promises):
    async def test_a_note_is_put_over_the_meta(self, bench: Bench) -> None:
        [claim] = await bench.running(prepared(meta='{"kept": 1, "said": {"a": 1}}'))
        before = await bench.job(claim.id)
        assert await bench.broker.update_meta([note(claim, '{"said": {"b": 2}}')]) == frozenset()
        found = await bench.job(claim.id)
        assert found.meta == {"kept": 1, "said": {"b": 2}}
        assert (found.state, found.attempt) == (State.RUNNING, 1)
        assert (found.claimed_at, found.worker_id) == (before.claimed_at, bench.worker_id)

    async def test_a_job_without_meta_takes_a_note(self, bench: Bench) -> None:
        [claim] = await bench.running()
        for number in range(3):
            meta = f'{{"said": {number}}}'
            assert await bench.broker.update_meta([note(claim, meta)]) == frozenset()
        assert (await bench.job(claim.id)).meta == {"said": 2}

    async def test_a_job_with_a_note_is_settled_as_usual(self, bench: Bench) -> None:
        [claim] = await bench.running()
        await bench.broker.update_meta([note(claim, '{"said": 1, "more": 2}')])
        ending = settlement(claim, State.SUCCEEDED)._replace(meta='{"said": 3}')
        assert await bench.settle(ending) == frozenset()
        found = await bench.job(claim.id)
        assert (found.state, found.meta) == (State.SUCCEEDED, {"said": 3, "more": 2})

    async def test_a_job_that_is_asked_to_stop_takes_a_note(self, bench: Bench) -> None:
        [claim] = await bench.running()
        await bench.broker.cancel([claim.id])
        assert await bench.broker.update_meta([note(claim)]) == frozenset()
        assert await bench.broker.stop_requests(bench.worker_id) == [claim.id]

    async def test_another_lease_is_refused(self, bench: Bench) -> None:
        good, other = await bench.running(prepared(), prepared())
        stale = await bench.broker.update_meta(
            [note(good), note(other)._replace(lease=uuid.uuid4())]
        )
        assert stale == {other.id}
        assert (await bench.job(good.id)).meta == {"said": 1}
        assert (await bench.job(other.id)).meta == {}

    @pytest.mark.parametrize(
        "state", sorted(TRANSITIONS[State.RUNNING]), ids=lambda state: state.label
    )
    async def test_a_note_of_an_ended_attempt_is_stale(self, bench: Bench, state: State) -> None:
        [claim] = await bench.running()
        await bench.settle(settlement(claim, state))
        assert await bench.broker.update_meta([note(claim)]) == {claim.id}
        assert (await bench.job(claim.id)).meta == {}

    async def test_a_note_of_the_previous_attempt_is_stale(self, bench: Bench) -> None:
        [before] = await bench.running()
        await bench.settle(settlement(before, State.PENDING))
        [now] = await bench.claim()
        assert await bench.broker.update_meta([note(before)]) == {before.id}
        assert await bench.broker.update_meta([note(now)]) == frozenset()

    async def test_a_note_of_an_unknown_job_is_stale(self, bench: Bench) -> None:
        unknown = Note(uuid.uuid4(), uuid.uuid4(), "{}")
        assert await bench.broker.update_meta([unknown]) == {unknown.id}

    async def test_a_note_that_cannot_be_stored_fails_alone(self, bench: Bench) -> None:
        for text in UNSTORABLE.values():
            claims = await bench.running(*(prepared(meta='{"kept": 1}') for _ in range(5)))
            notes = [note(claim) for claim in claims]
            notes[2] = note(claims[2], text)
            notes[4] = notes[4]._replace(lease=uuid.uuid4())
            refused: dict[int, StatementFailed] = {}
            notes = [
                one._replace(on_refused=partial(refused.__setitem__, number))
                for number, one in enumerate(notes)
            ]
            assert await bench.broker.update_meta(notes) == {claims[4].id}
            assert list(refused) == [2]
            found = [(await bench.job(claim.id)).meta for claim in claims]
            assert found == [{"kept": 1, "said": 1}] * 2 + [{"kept": 1}] + [
                {"kept": 1, "said": 1},
                {"kept": 1},
            ]
            # The job of the refused note goes on.
            assert await bench.broker.update_meta([note(claims[2])]) == frozenset()
            assert await bench.settle(settlement(claims[2], State.SUCCEEDED)) == frozenset()

    async def test_many_notes_at_once(self, bench: Bench) -> None:
        await bench.push(*(prepared() for _ in range(1_200)))
        claims = await bench.claim(limit=1_200)
        assert await bench.broker.update_meta([note(claim) for claim in claims]) == frozenset()
        found = await bench.broker.get([claim.id for claim in claims])
        assert [found[claim.id].meta for claim in claims] == [{"said": 1}] * 1_200

    async def test_noting_nothing_is_allowed(self, bench: Bench) -> None:
        assert await bench.broker.update_meta([]) == frozenset()
