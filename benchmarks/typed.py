"""The cost of typed arguments, against pydantic's own validation and dump of the same arguments.

Run it with ``python -m benchmarks.typed``. It needs no server.

pydantic uses a `TypeAdapter` of a TypedDict with the function's parameters: ``validate_python`` and
``dump_json`` together for encoding, and ``validate_json`` for decoding. Both sides alternate in
every round, so that a noisy machine affects them alike; each figure is the best of its rounds, in
CPU time of this thread; compare only the ratios. ``encoded`` is the work at the push, ``decoded``
the work at the run. The last table shows the full preparation of a push, with and without
validation.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, get_type_hints
from uuid import UUID, uuid4

from pydantic import BaseModel, Field, TypeAdapter, field_validator
from typing_extensions import TypedDict

from benchmarks.jobs import noop
from chancy.app.preparation import JobPreparation
from chancy.job.registry import Registry
from chancy.serialization.signature import Signature

ROUNDS = 9
#: Approximate seconds of one measurement in a round.
SPAN_S = 0.02
AT = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)


class Color(Enum):
    RED = "red"


class Address(BaseModel):
    street: str
    zip: str


class Order(BaseModel):
    id: int = Field(gt=0)
    at: datetime
    total: Decimal
    to: Address
    lines: list[str]
    note: str | None = None


class Checked(BaseModel):
    """A model with its own validator, which runs again to check that the value is unchanged."""

    n: int

    @field_validator("n")
    @classmethod
    def check(cls, n: int) -> int:
        return n


@dataclass(frozen=True, slots=True)
class Point:
    x: float
    y: float
    at: datetime


@dataclass
class Reading:
    """A float that may be None: pydantic writes null for both NaN and None."""

    at: datetime
    value: float
    before: float | None = None


def moment(to: str, at: datetime) -> None: ...
def scalars(id: UUID, total: Decimal, within: timedelta, color: Color) -> None: ...
def model(order: Order) -> None: ...
def models(orders: list[Order]) -> None: ...
def point(point: Point, n: int) -> None: ...
def numbers(values: list[float]) -> None: ...
def moments(values: list[datetime]) -> None: ...
def mapping(values: dict[str, list[int]]) -> None: ...
def checked(value: Checked) -> None: ...
def ambiguous(value: datetime | str) -> None: ...
def readings(values: list[Reading]) -> None: ...
def text(value: datetime | str) -> None: ...
def digits(value: datetime | str) -> None: ...


ORDER = Order(id=1, at=AT, total=Decimal("9.90"), to=Address(street="s", zip="z"), lines=["a", "b"])
CASES: Mapping[Callable[..., None], dict[str, Any]] = {
    moment: {"to": "a@b.c", "at": AT},
    scalars: {
        "id": uuid4(), "total": Decimal("1.5"), "within": timedelta(1), "color": Color.RED
    },
    model: {"order": ORDER},
    models: {"orders": [ORDER] * 50},
    point: {"point": Point(1.0, 2.0, AT), "n": 1},
    numbers: {"values": [number / 7 for number in range(1_000)]},
    moments: {"values": [AT] * 100},
    mapping: {"values": {"a": [1, 2, 3], "b": [4] * 20}},
    checked: {"value": Checked(n=1)},
    ambiguous: {"value": AT},
    readings: {"values": [Reading(AT, 1.5)] * 20},
    text: {"value": "soon"},
    digits: {"value": "room 7"},
}  # fmt: skip


def best_us(calls: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """Microseconds a call: the best of several rounds with alternating calls."""
    best = dict.fromkeys(calls, float("inf"))
    times = {title: _times(call) for title, call in calls.items()}
    for _ in range(ROUNDS):
        for title, call in calls.items():
            best[title] = min(best[title], _took_s(call, times[title]) / times[title])
    return {title: 1e6 * took_s for title, took_s in best.items()}


def _times(call: Callable[[], object]) -> int:
    """The number of calls that takes about `SPAN_S`."""
    call()
    times = 1
    while (took_s := _took_s(call, times)) < SPAN_S / 4:
        times *= 4
    return max(1, int(times * SPAN_S / took_s))


def _took_s(call: Callable[[], object], times: int) -> float:
    started = time.thread_time()
    for _ in range(times):
        call()
    return time.thread_time() - started


def compare(function: Callable[..., None], arguments: dict[str, Any]) -> dict[str, float]:
    hints = get_type_hints(function)
    del hints["return"]
    make: Any = TypedDict
    adapter: TypeAdapter[Any] = TypeAdapter(make("Arguments", hints))
    signature = Signature.of(function, f"benchmarks.{function.__name__}")
    text = signature.encode(arguments)
    return best_us(
        {
            "dumped": lambda: adapter.dump_json(adapter.validate_python(arguments)).decode(),
            "encoded": lambda: signature.encode(arguments),
            "validated": lambda: adapter.validate_json(text),
            "decoded": lambda: signature.decode(text),
        }
    )


def main() -> None:
    print("| arguments | pydantic µs | encoded µs | ratio | pydantic µs | decoded µs | ratio |")
    print("|---|---|---|---|---|---|---|")
    for function, arguments in CASES.items():
        us = compare(function, arguments)
        cells = [
            f"{theirs:.2f} | {ours:.2f} | {ours / theirs:.2f}"
            for theirs, ours in (
                (us["dumped"], us["encoded"]),
                (us["validated"], us["decoded"]),
            )
        ]
        print(f"| {function.__name__} | {' | '.join(cells)} |")
    preparation = JobPreparation(Registry(), 1_000_000)
    plain = noop.job(number=1)
    us = best_us(
        {
            "with": lambda: preparation.prepare(plain, validate=True),
            "without": lambda: preparation.prepare(plain, validate=False),
        }
    )
    print("\n| push of a number, prepared | µs |\n|---|---|")
    print(f"| validated | {us['with']:.2f} |\n| not validated | {us['without']:.2f} |")


if __name__ == "__main__":
    main()
