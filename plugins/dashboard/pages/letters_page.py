"""Dead letters by fingerprint; replay and purge, one by one or a whole group in batches."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

from starlette.responses import RedirectResponse, Response

from chancy.job.ids import new_ids
from chancy.plugin.tables import from_row, utc
from chancy.plugins.dashboard.access import Action
from chancy.plugins.dashboard.job_rows import FOREVER, HIGH, LOW, NEVER
from chancy.plugins.dashboard.redaction import line, tree
from chancy.plugins.dashboard.site import Refused, View, uuid_of
from chancy.plugins.dashboard.undertaking import Deed, Step, deed, start
from chancy.plugins.dead_letter import DeadLetter, DeadLetters, LetterFilter
from chancy.plugins.dead_letter.store import (
    BATCH,
    REPLAY_BYTES,
    SQL,
    Group,
    LetterPosition,
    Letters,
)

#: Groups and dead letters of a page.
_GROUPS, _PAGE = 50, 50
_MOST_RATE, _MOST_TOTAL = 100_000.0, 1_000_000
#: What the actions on a group do.
_REPLAYS = (
    "Their jobs are pushed again in batches of up to 500, {}. Those replayed before are left "
    "out. The audit shows how far it is, and can stop it."
)
_PURGES = (
    "They are deleted in batches of 500, and cannot be replayed any more. The audit shows how far "
    "it is, and can stop it."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterRow:
    """A dead letter in a list. Times are aware, in UTC."""

    id: UUID
    queue: str
    func: str
    attempt: int
    died_at: datetime
    replayed_at: datetime | None
    replayed_as: UUID | None
    host: str | None
    message: str | None
    arguments: str | None


async def show(view: View) -> Response:
    view.plugin(DeadLetters)
    site, after = view.site, _after(view)

    async def look() -> Sequence[Group]:
        return await Letters(site.lists).groups(limit=_GROUPS + 1, after=after)

    groups = await site.looks.get(("letter groups", after), look, keep_s=10.0)
    last = groups[_GROUPS - 1] if len(groups) > _GROUPS else None
    return await view.render(
        "letters.html",
        title="Dead letters",
        groups=groups[:_GROUPS],
        after=_text(last.newest, last.newest_id) if last else None,
    )


def _after(view: View) -> LetterPosition | None:
    """The position in the address, from which a page goes on."""
    given = view.query("after")
    if given is None:
        return None
    at, _, id = given.partition("_")
    try:
        return LetterPosition(datetime.fromisoformat(at).replace(tzinfo=UTC), UUID(id))
    except ValueError:
        raise Refused(400, "the address of this page is damaged") from None


def _text(at: datetime, id: UUID) -> str:
    return f"{at:%Y-%m-%dT%H:%M:%S.%f}_{id}"


async def show_group(view: View) -> Response:
    view.plugin(DeadLetters)
    site, fingerprint = view.site, view.path("fingerprint")
    at, id = _after(view) or (FOREVER, HIGH)
    tables = SQL.on(site.lists)
    rows = await tables.fetch("group_page", fingerprint, at, id, _PAGE + 1)
    letters = [from_row(LetterRow, row) for row in rows]
    if not letters:
        return await view.render("letters_none.html", 404, title="Dead letters")
    newest = await view.plugin(DeadLetters).get(site.chancy, letters[0].id)
    more, letters = len(letters) > _PAGE, letters[:_PAGE]
    last = letters[-1]
    return await view.render(
        "letter_group.html",
        title=newest.error or newest.reason if newest else "Dead letters",
        fingerprint=fingerprint,
        letters=letters,
        newest=newest,
        after=_text(last.died_at, last.id) if more else None,
        arguments=lambda one: line(one.arguments, site.masked) if view.shows(one.func) else "",
    )


async def show_letter(view: View) -> Response:
    site = view.site
    letter = await view.plugin(DeadLetters).get(site.chancy, view.id())
    if letter is None:
        raise Refused(404, "there is no such dead letter: it was purged, or its job did not fail")
    shows = view.shows(letter.func)
    return await view.render(
        "letter.html",
        title=letter.func.rpartition(".")[2],
        letter=letter,
        arguments=tree(letter.arguments, site.masked) if shows else None,
        meta=tree(dict(letter.meta), site.masked) if shows and letter.meta else None,
    )


async def _one(view: View, action: Action) -> DeadLetter:
    letter = await view.plugin(DeadLetters).get(view.site.chancy, uuid_of(view.field("id")))
    if letter is None:
        raise Refused(404, "there is no such dead letter any more")
    view.require(action, f"queue:{letter.queue}")
    return letter


async def replay_as_seen(view: View, letters: Letters, id: UUID) -> Mapping[UUID, UUID]:
    """Replay a dead letter whose last replay is the one that the form names, or that has none;
    returns the new id, if any, by that of the dead letter.

    :raises Refused: it was replayed since the page of the form was shown.
    """
    last = await letters.replayed_as(id)
    if last is not None and str(last) != view.field("seen"):
        raise Refused(
            409, f"it was replayed already, as {last}: its page offers to do so once more"
        )
    prepare = view.site.chancy.prepare_stored
    return await letters.replay([id], new_ids(1), prepare=prepare, force=True)


async def replay(view: View) -> Response:
    letter = await _one(view, Action.REPLAY_LETTER)
    async with deed(view) as act:
        letters = Letters(act.store, view.site.chancy.broker)
        found = await replay_as_seen(view, letters, letter.id)
        if not found:
            why = (
                "this application has no processor of its stream"
                if letter.reason == "event"
                else "another job holds its unique key"
            )
            raise Refused(409, f"it was not replayed: {why}")
        (job,) = found.values()
        await act.note(Action.REPLAY_LETTER, f"job:{letter.id}", {"as": job}, jobs=1)
    shown = f"dead-letters/{letter.id}" if letter.reason == "event" else f"jobs/{job}"
    return RedirectResponse(view.url(shown, done=act.entry), 303)


async def purge(view: View) -> Response:
    letter = await _one(view, Action.PURGE_LETTER)
    async with deed(view) as act:
        if not await Letters(act.store).purge([letter.id]):
            raise Refused(409, "it was purged already")
        await act.note(Action.PURGE_LETTER, f"job:{letter.id}", None, jobs=1)
    return RedirectResponse(view.url("dead-letters", done=act.entry), 303)


async def replay_group(view: View) -> Response:
    given = view.field("rate")
    try:
        rate = float(given) if given else None
    except ValueError:
        raise Refused(400, f"the rate {given[:40]!r} is not a number") from None
    if rate is not None and not 0.001 <= rate <= _MOST_RATE:
        raise Refused(400, f"the rate must be from 0.001 to {_MOST_RATE:,.0f} jobs a second")
    return await _whole_group(view, Action.REPLAY_LETTER, rate)


async def purge_group(view: View) -> Response:
    return await _whole_group(view, Action.PURGE_LETTER, None)


async def _whole_group(view: View, action: Action, rate: float | None) -> Response:
    """Replay or purge the dead letters of a group that exist now, in batches; those of queues for
    which the person may not do this are left alone."""
    site, fingerprint = view.site, view.field("fingerprint")
    newest = await _newest(view, fingerprint)
    view.require(action, f"queue:{newest.queue}")
    replays = action is Action.REPLAY_LETTER
    what = f"{'Replay' if replays else 'Purge'} all dead letters of this group"
    effect = f"{newest.func}: {newest.error or newest.reason}: {newest.message[:300]}. "
    pace = "without a pause" if rate is None else f"{rate:g} a second"
    effect += _REPLAYS.format(pace) if replays else _PURGES
    if asked := await view.confirm(what, f"dead-letters/groups/{fingerprint}", effect):
        return asked
    # Jobs that fail again while they are replayed die later than this.
    chosen = await Letters(site.chancy.broker).choose(LetterFilter(), bounded=True)
    until = chosen.until or view.now
    rows = await SQL.on(site.store).fetch("group_count", fingerprint, until, replays, _MOST_TOTAL)
    step = _in_batches(view, fingerprint, until, action, rate)
    detail = {
        "fingerprint": fingerprint,
        "error": newest.error,
        "func": newest.func,
        "rate": rate,
        "of": rows[0][0],
    }
    subject = f"queue:{newest.queue}"
    entry = await start(view, action, subject, detail, step)
    return RedirectResponse(view.url("audit", done=entry), 303)


async def _newest(view: View, fingerprint: str) -> DeadLetter:
    tables = SQL.on(view.site.store)
    rows = await tables.fetch("group_page", fingerprint, FOREVER, HIGH, 1)
    newest = await view.plugin(DeadLetters).get(view.site.chancy, rows[0][0]) if rows else None
    if newest is None:
        raise Refused(404, "this group has no dead letters any more")
    return newest


def _in_batches(
    view: View, fingerprint: str, until: datetime, action: Action, rate: float | None
) -> Step:
    """Replay or purge one batch in each call, the oldest first."""
    chancy, replays = view.site.chancy, action is Action.REPLAY_LETTER
    gap_s = 1 / rate if rate else 0.0
    after = NEVER, LOW
    done, began = 0, time.monotonic()

    async def step(act: Deed) -> int | None:
        nonlocal after, done
        most_bytes = REPLAY_BYTES if replays else None
        rows = await SQL.on(act.store).fetch(
            "group_ids", fingerprint, *after, until, BATCH, replays, most_bytes
        )
        if not rows:
            return None
        after = utc(rows[-1][1]), rows[-1][0]
        allowed = view.mine(action, (queue for _, _, queue in rows))
        ids = [id for id, _, queue in rows if queue in allowed]
        letters = Letters(act.store, chancy.broker)
        if replays:
            # The rate counts from the start: the time of earlier batches is deducted.
            ahead_s = done * gap_s - (time.monotonic() - began)
            found = await letters.replay(
                ids,
                new_ids(len(ids)),
                prepare=chancy.prepare_stored,
                delay_s=max(ahead_s, 0.0),
                gap_s=gap_s,
                skip_refused=True,
            )
            count = len(found)
        else:
            count = await letters.purge(ids)
        done += count
        return count

    return step
