"""Types of arguments that an application could have."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any, Generic, Literal, NamedTuple, NotRequired, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from typing_extensions import TypedDict

T = TypeVar("T")


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Grade(enum.IntEnum):
    """Equal to those of `Level`."""

    GOOD = 1
    BEST = 2


class Tone(enum.StrEnum):
    WARM = "warm"


class Mixed(enum.Enum):
    ONE = 1
    PAIR = (1, 2)


class Item(BaseModel):
    name: str
    price: Decimal
    due: datetime | None = None


class GiftItem(Item):
    card: str = ""


class Order(BaseModel):
    id: int
    items: list[Item]
    color: Color = Color.RED


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    lives: int = 9


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"


Pet = Annotated[Cat | Dog, Field(discriminator="kind")]


class Node(BaseModel):
    name: str
    children: list[Node] = []


class Box(BaseModel, Generic[T]):
    content: T


class Bounded(BaseModel):
    amount: int = Field(gt=0)


class Doubling(BaseModel):
    """What is read is not what was written."""

    amount: int

    @field_validator("amount")
    @classmethod
    def double(cls, amount: int) -> int:
        return 2 * amount


class Checked(BaseModel):
    n: int

    @field_validator("n")
    @classmethod
    def check(cls, n: int) -> int:
        return n


class Named(BaseModel):
    """Written and read by another name."""

    id: int = Field(alias="orderId")


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    id: int


class Hiding(BaseModel):
    id: int
    secret: str = Field(default="", exclude=True)


class Loose(BaseModel):
    anything: Any


@dataclass
class Point:
    x: float
    y: float
    at: datetime | None = None


@dataclass
class Nothing:
    """Without fields."""


@dataclass
class Point3(Point):
    z: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    ends: tuple[Point, Point]
    tags: frozenset[str] = frozenset()


@dataclass
class Money:
    amount: Decimal


@dataclass
class Amount:
    n: Annotated[int, Field(gt=0)]


@dataclass
class Derived:
    x: int
    square: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.square = self.x**2


class Address(TypedDict):
    street: str
    since: date
    zip: NotRequired[str]


class Lenient(TypedDict):
    """Takes more than it keeps."""

    __pydantic_config__ = ConfigDict(extra="ignore")  # type: ignore[misc]
    a: int


@dataclass
class Frame:
    address: Address


@dataclass(frozen=True, slots=True)
class Slotted:
    a: int
    at: datetime | None = None


@dataclass
class Counted:
    x: int
    n: int = field(init=False, default=0)


class Rough(BaseModel):
    model_config = ConfigDict(ser_json_timedelta="float")
    age: timedelta


class Raw(BaseModel):
    """Bytes are written in one way and read in another."""

    model_config = ConfigDict(ser_json_bytes="base64")
    data: bytes


class Spelled(BaseModel):
    """Written by a name by which it is not read."""

    model_config = ConfigDict(validate_by_name=True, validate_by_alias=False)
    id: int = Field(alias="orderId")


class Span(NamedTuple):
    begin: date
    days: int


class Pair(NamedTuple):
    """Both are equal where one holds a member of an enum and the other its value."""

    first: Level | int
    second: frozenset[Tone] | frozenset[str] = frozenset()


@dataclass(frozen=True)
class Either:
    number: int | Level
    numbers: frozenset[Level] | frozenset[int] = frozenset()


class Growing(BaseModel):
    """What is read is not what was written: its validator is asked before."""

    amount: int

    @field_validator("amount", mode="before")
    @classmethod
    def grow(cls, amount: int) -> int:
        return amount + 1


class Settling(BaseModel):
    """Its validators change what they see first, and not what they made of it."""

    name: str
    day: date

    @field_validator("name")
    @classmethod
    def trim(cls, name: str) -> str:
        return name.strip()

    @field_validator("day", mode="before")
    @classmethod
    def read(cls, day: object) -> object:
        return day


class Misreading(BaseModel):
    """Its validator leaves a date as it is, and reads the text of one as another."""

    day: date

    @field_validator("day", mode="before")
    @classmethod
    def read(cls, day: object) -> object:
        return "2001-01-01" if isinstance(day, str) else day


class Asking(BaseModel):
    """Its validator asks how it is called."""

    n: int

    @field_validator("n")
    @classmethod
    def ask(cls, n: int, info: ValidationInfo) -> int:
        return n + 1 if info.mode == "json" else n


class Blob(BaseModel):
    """Of bytes that are no text a union writes another text than is read here."""

    data: bytes | bool


@dataclass
class Weight:
    kg: float


class Twig(BaseModel):
    trees: list[Tree] = []


class Tree(BaseModel):
    leaf: datetime | str
    twigs: list[Twig] = []
