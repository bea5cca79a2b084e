"""What a look at a value finds: its type, and what else must be true of it."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, time
from types import NoneType
from typing import Any, Final, NamedTuple

from chancy.serialization.roundtrip.equality import whole_minutes

Look = Callable[[Any], bool]
LookAtAll = Callable[[Collection[Any]], bool]

#: Combinations of types that are remembered of the fields of one class, at most.
_MOST_PASSED = 8
_no_zone = frozenset({None, UTC})
_zone = operator.attrgetter("tzinfo")
_held = operator.attrgetter("__dict__")


class RoundTripCheck(NamedTuple):
    """A value of one of these types of which ``more`` is true comes back from JSON as it is.

    Any other has to be read back to know.

    :param more: looks at a value of the types; None if they say enough.
    :param more_all: the same for many, at a third of the price for each.
    """

    types: frozenset[type]
    more: Look | None = None
    more_all: LookAtAll | None = None

    def holds(self, value: Any) -> bool:
        return type(value) in self.types and (self.more is None or self.more(value))

    def holds_all(self, values: Collection[Any]) -> bool:
        if not self.types.issuperset(map(type, values)):  # 0.01 µs each
            return False
        if self.more_all is not None:
            return self.more_all(values)
        return self.more is None or all(map(self.more, values))


#: What always has to be read back.
NEVER: Final = RoundTripCheck(frozenset())


def moments(cls: type[datetime] | type[time]) -> RoundTripCheck:
    return RoundTripCheck(frozenset({cls}), whole_minutes, _all_whole_minutes)


def _all_whole_minutes(values: Collection[datetime | time]) -> bool:
    try:
        if _no_zone.issuperset(map(_zone, values)):
            return True
    except TypeError:  # a zone that cannot be hashed
        pass
    return all(map(whole_minutes, values))


def or_none(proof: RoundTripCheck) -> RoundTripCheck:
    more, types = proof.more, proof.types | {NoneType}
    if more is None or not proof.types:
        return RoundTripCheck(types)
    inner = RoundTripCheck(proof.types, more, proof.more_all)
    return RoundTripCheck(
        types,
        lambda value: value is None or more(value),
        lambda values: inner.holds_all([value for value in values if value is not None]),
    )


def one_of(values: Iterable[Any]) -> RoundTripCheck:
    known = {(type(value), value) for value in values}
    types = frozenset(kind for kind, _ in known)
    return RoundTripCheck(types, lambda value: (type(value), value) in known)


def any_of(proofs: Sequence[RoundTripCheck]) -> RoundTripCheck:
    """Of proofs whose types differ: the one that a value's type chooses."""
    chosen = {kind: proof.more for proof in proofs for kind in proof.types}
    if len(chosen) != sum(len(proof.types) for proof in proofs):
        return NEVER
    types = frozenset(chosen)
    if not any(chosen.values()):
        return RoundTripCheck(types)
    return RoundTripCheck(types, lambda value: (more := chosen[type(value)]) is None or more(value))


def array_of(cls: type, proof: RoundTripCheck | None) -> RoundTripCheck:
    """:param proof: of all items; None if they need none."""
    if proof is None:
        return RoundTripCheck(frozenset({cls}))
    types = proof.types
    return RoundTripCheck(
        frozenset({cls}),
        proof.holds_all if proof.more else lambda value: types.issuperset(map(type, value)),
        lambda values: proof.holds_all([item for value in values for item in value]),
    )


def dict_of(keys: RoundTripCheck | None, values: RoundTripCheck | None) -> RoundTripCheck:
    def more(found: dict[Any, Any]) -> bool:
        return (keys is None or keys.holds_all(found)) and (
            values is None or values.holds_all(found.values())
        )

    return RoundTripCheck(frozenset({dict}), more if keys or values else None)


def items_of(cls: type, proofs: Sequence[RoundTripCheck | None]) -> RoundTripCheck:
    """Of a tuple with an item for each proof."""
    asked = [(at, proof) for at, proof in enumerate(proofs) if proof is not None]

    def more(value: tuple[Any, ...]) -> bool:
        return len(value) == len(proofs) and all(proof.holds(value[at]) for at, proof in asked)

    return RoundTripCheck(frozenset({cls}), more)


def object_of(cls: type, fields: Mapping[str, RoundTripCheck], *, slotted: bool) -> RoundTripCheck:
    """Of an object with a value for each field.

    Looking raises what getting an attribute or key raises where it lacks a field.
    """
    if not fields:
        return RoundTripCheck(frozenset({cls}))
    last = [*fields][-1]
    # A name twice: with one it would give the value, no tuple.
    get = (operator.attrgetter if slotted else operator.itemgetter)(*fields, last)
    types = [proof.types for proof in (*fields.values(), fields[last])]
    asked = [(at, proof.more) for at, proof in enumerate(fields.values()) if proof.more]
    passed: list[tuple[type, ...]] = []  # to compare takes half as long as to hash

    def more(value: Any) -> bool:
        held = get(value if slotted else value.__dict__)
        kinds = (*map(type, held),)
        if kinds not in passed:
            if not all(map(operator.contains, types, kinds)):
                return False
            if len(passed) < _MOST_PASSED:
                passed.append(kinds)
        for at, look in asked:  # noqa: SIM110  a generator takes twice as long
            if not look(held[at]):
                return False
        return True

    field = operator.attrgetter if slotted else operator.itemgetter
    columns = [(field(name), proof.holds_all) for name, proof in fields.items()]

    def more_all(values: Collection[Any]) -> bool:
        held = values if slotted else [*map(_held, values)]
        return all(holds_all([*map(get_one, held)]) for get_one, holds_all in columns)

    return RoundTripCheck(frozenset({cls}), more, more_all)
