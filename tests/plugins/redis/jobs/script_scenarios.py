"""A scenario for each script of the broker: what a process does that surely comes to run it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from chancy import State
from chancy.plugins.redis import records
from tests.plugins.redis.jobs import doomed_calls as deeds
from tests.plugins.redis.jobs.doomed_calls import ALL, FIRST, NOTES, PENDING, REFUSED, Deed
from tests.plugins.redis.jobs.scene import DELAYS_S, NUMBERS, Look, Scene

Seen = Callable[[Look, Scene], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """What happens around the death at a script. Pairs are of the death before it, and after.

    :param deed: of the process that dies.
    :param prepare: by a healthy process, before.
    :param again: by a healthy process, after: what somebody does who had no answer.
    :param alone: see `Scene`.
    :param seen: what tells whether it was run, and its values after the death.
    :param stored: jobs that Redis has then; None: a hand has made its lists wrong.
    :param ended: jobs that have ended in the end.
    :param end: of all of them, if it is not their own.
    :param left: what stays in keys beyond what a process leaves that nobody has killed.
    :param still: whether it changes nothing.
    :param calls: how often the script is run at least.
    """

    deed: Deed = deeds.work
    prepare: Deed = deeds.pushed
    again: Deed = deeds.nothing
    alone: bool = False
    seen: Seen = lambda look, scene: None
    values: tuple[object, object] = (None, None)
    stored: tuple[int, int] | None = (ALL, ALL)
    ended: tuple[Iterable[int], Iterable[int]] = (NUMBERS, NUMBERS)
    end: State | None = None
    left: tuple[Mapping[str, int], Mapping[str, int]] = ({}, {})
    still: bool = False
    calls: int = 1


def members(name: str) -> Seen:
    """Of a key."""
    return lambda look, scene: look(name)


def lines(look: Look, scene: Scene) -> int:
    """Objects of the meta of the first job."""
    return records.meta_of(look.record(scene.id(0))).count(b"\n") + 1


WORK = Scenario()
LOOK = Scenario(deed=deeds.look_around, still=True)
WITHIN = Scenario(prepare=deeds.pushed_within)
KEEP_UP = Scenario(
    prepare=deeds.miscounted, deed=deeds.keep_up, again=deeds.keep_up_again, stored=None
)

#: By script; behind a stroke what else it does.
SCENARIOS: Mapping[str, Scenario] = {
    # Workers
    "register": replace(WORK, seen=members("beats"), values=(0, 1)),
    "declare": replace(WORK, seen=members("queues"), values=(0, 1)),
    "announce": Scenario(alone=True, seen=members("serves"), values=(0, 1)),
    "beat": replace(WORK, calls=2),
    "claim": replace(WORK, seen=members("holders"), values=(0, 1)),
    "claim_aside": replace(
        WORK, prepare=deeds.set_aside, seen=members("asides:errands"), values=(1, 0)
    ),
    "recover": WORK,
    "update_meta": WORK,
    "settle": replace(
        WORK, seen=lambda look, scene: look("done", "dead") > 0, values=(False, True)
    ),
    "promote": WORK,
    "orphans": Scenario(prepare=deeds.orphaned),
    "stop_requests": WORK,
    "unregister": replace(WORK, seen=members("beats"), values=(1, 0)),
    "relay": replace(WITHIN, stored=(0, ALL)),
    # What Redis remembers of jobs that are deleted from Postgres goes after 100,000 more.
    "relayed": replace(
        WITHIN, seen=members("relayed"), values=(ALL, 0), left=({"relayed": ALL}, {})
    ),
    "unarchived": WORK,
    "archived": WORK,
    # Those who push
    "push_one": Scenario(
        prepare=deeds.nothing,
        deed=deeds.push_one,
        again=deeds.push_one,
        stored=(0, 1),
        ended=((1,), (1,)),
    ),
    "push_plain": Scenario(
        prepare=deeds.nothing, deed=deeds.push_plain, again=deeds.push_plain, stored=(0, ALL)
    ),
    "push": Scenario(prepare=deeds.nothing, deed=deeds.pushed, again=deeds.pushed, stored=(0, ALL)),
    # Whoever dies with it leaves what was stored: jobs as any others.
    "take_back": Scenario(
        prepare=deeds.held,
        deed=deeds.refused,
        again=deeds.refused_again,
        stored=(1 + FIRST, 1),
        ended=((1, *REFUSED[:FIRST]), (1,)),
        left=(deeds.rest_of(REFUSED[:FIRST]), {}),
    ),
    "cancel": Scenario(
        prepare=deeds.pushed_for_later,
        deed=deeds.cancel,
        again=deeds.cancel,
        end=State.CANCELLED,
        seen=members("done"),
        values=(0, ALL),
    ),
    "cancel/running": Scenario(
        prepare=deeds.taken,
        deed=deeds.cancel,
        again=deeds.cancel,
        end=State.CANCELLED,
        seen=members("done"),
        values=(0, ALL - 1),
    ),
    "run_now": Scenario(
        prepare=deeds.pushed_for_later,
        deed=deeds.run_now,
        again=deeds.run_now,
        seen=members("due"),
        values=(ALL, 0),
    ),
    # Ends are told for a day to those who do not say that they wait no longer.
    "watch": Scenario(
        deed=deeds.expect, seen=members("expected"), values=(0, ALL), left=({}, {"expected": ALL})
    ),
    "unwatch": Scenario(
        deed=deeds.expect, seen=members("expected"), values=(ALL, 0), left=({"expected": ALL}, {})
    ),
    "fold": Scenario(deed=deeds.note, seen=lines, values=(NOTES, 1)),
    # Upkeep
    "trim": Scenario(
        prepare=deeds.ran,
        deed=deeds.forget_all,
        again=deeds.forget_all,
        seen=members("done"),
        values=(ALL - 1, 0),
        stored=(ALL, 1),
    ),
    "upkeep": replace(KEEP_UP, seen=members("upkeep"), values=(0, 1)),
    "readmit": replace(
        KEEP_UP, prepare=deeds.unreadable, seen=members("unreadable"), values=(len(DELAYS_S), 0)
    ),
    "level": replace(
        KEEP_UP,
        seen=lambda look, scene: look.counter(PENDING),
        values=(deeds.WRONG, ALL - len(DELAYS_S)),
    ),
    # Those who look after queues
    "purge": Scenario(
        prepare=deeds.failed,
        deed=deeds.purge_all,
        again=deeds.purge_all,
        seen=members("dead"),
        values=(ALL, 0),
        stored=(ALL, 0),
        ended=((), ()),
    ),
    "pause": Scenario(
        prepare=deeds.beside_another,
        deed=deeds.pause,
        again=deeds.pause_and_resume,
        alone=True,
        seen=members("paused"),
        values=(0, 1),
    ),
    "delete_queue": Scenario(
        prepare=deeds.beside_another,
        deed=deeds.delete_another,
        again=deeds.delete_another,
        alone=True,
        seen=members("queues"),
        values=(2, 1),
    ),
    # Those who look
    **dict.fromkeys(
        ("fetch", "position", "find", "counts", "queues", "workers", "listed", "next_s"), LOOK
    ),
}
