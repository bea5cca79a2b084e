"""Values of annotated types: validated, written as JSON, and read back before they are stored.

pydantic does the work. It is imported with this module, which is loaded when a value is met that
needs it.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NotRequired, Required, Union, get_args, get_origin
from uuid import UUID

import typing_extensions
from pydantic import ConfigDict, GetCoreSchemaHandler, TypeAdapter, ValidationError
from pydantic_core import CoreConfig, CoreSchema, SchemaSerializer

from chancy.errors import InvalidArguments
from chancy.serialization import codec
from chancy.serialization.annotations import Parameter, ReadAsIterator, Unresolved
from chancy.serialization.equality import Difference, compare
from chancy.text import shown

#: Values must have the annotated types: nothing is coerced. A type with a configuration of its own,
#: such as a model, uses that one.
_CONFIG = ConfigDict(
    strict=True,
    ser_json_bytes="base64",
    val_json_bytes="base64",
    allow_inf_nan=False,
)
#: For types without a configuration of their own: serializers do not inherit that of a TypedDict.
_WRITING = CoreConfig(ser_json_bytes="base64")
#: Types whose validated values come back from short ASCII text, a datetime if its zone is UTC.
_LEAVES = frozenset(
    {NoneType, bool, int, float, str, bytes, Decimal, UUID, date, timedelta, datetime}
)
#: Only texts up to this length may be stored without being read back: a longer one may have too
#: many levels, or a number with too many digits.
_SHORT = 190
#: Containers of which the JSON is that of another one.
_CONTAINERS: dict[object, type] = {"tuple": tuple, "counter": Counter, "ordered-dict": OrderedDict}
#: How the kinds of schemas that change a value begin, and the rules that change a string.
_FUNCTIONS = ("function", "chain", "custom")
_RULES = frozenset({"strip_whitespace", "to_lower", "to_upper"})
_ALTERED = object()
#: The most errors that one message lists.
_LISTED = 3

# Type checkers know them as forms of syntax.
_annotated: Any = Annotated
_make_typed_dict: Callable[[str, dict[str, Any]], Any] = vars(typing_extensions)["TypedDict"]


class Validator:
    """The values of several names, for example the arguments of a function.

    :param path: the path of the function, for errors.
    :param rest: the type of further names; None if there may be none.
    :param call: how a parameter is called in an error, for example ``parameter 'to'``.
    """

    def __init__(
        self,
        path: str,
        parameters: Sequence[Parameter],
        rest: Parameter | None,
        call: Callable[[str], str],
    ) -> None:
        self._path = path
        self._call = call
        #: The names whose annotations pydantic does not support, and why.
        self.useless: dict[str, str] = {}
        #: The types that the annotation of each name mentions; see `compare`.
        self._named: dict[str, frozenset[type]] = {}
        #: The names whose values a user's validators may change.
        self._altered: set[str] = set()
        for one in (*parameters, *([] if rest is None else [rest])):
            self._inspect(one)
        known = [one for one in parameters if one.name not in self.useless]
        self._leaves = {one.name: _leaves_of(one.annotation) for one in known}
        self._rest = rest
        self._open = rest is not None and rest.name not in self.useless
        adapter = self._adapter(known)
        self._validator = adapter.validator
        self._writer = SchemaSerializer(adapter.core_schema, _WRITING)

    def _inspect(self, parameter: Parameter) -> None:
        name, annotation = parameter.name, parameter.annotation
        if isinstance(annotation, Unresolved | ReadAsIterator):
            self.useless[name] = str(annotation)
            return
        try:
            schema: object = TypeAdapter(_type_of(parameter)).core_schema
        except Exception as error:
            self.useless[name] = (
                f"values of its annotation {shown(annotation)} cannot be stored: "
                f"{str(error).splitlines()[0]}"
            )
            return
        mentioned = {*_mentioned(schema)}
        if _ALTERED in mentioned:
            self._altered.add(name)
        kinds = () if "any" in mentioned else _CONTAINERS.keys() & mentioned
        mentioned.update(_CONTAINERS[kind] for kind in kinds)
        self._named[name] = frozenset(one for one in mentioned if isinstance(one, type))

    def _adapter(self, parameters: Iterable[Parameter]) -> TypeAdapter[dict[str, Any]]:
        fields = {
            one.name: (Required if one.required else NotRequired)[_type_of(one)]
            for one in parameters
        }
        made = _make_typed_dict("Arguments", fields)
        extra: Literal["allow", "forbid"] = "allow" if self._open else "forbid"
        config: ConfigDict = {**_CONFIG, "extra": extra}
        made.__pydantic_config__ = config
        if self._rest is not None and self._open:
            made = _annotated[made, _Rest(self._rest)]
        return TypeAdapter(made)

    def encode(self, given: dict[str, Any], what: str, limit: int) -> str:
        """Return values as JSON text from which `decode` returns the same values.

        :param what: the name of the values in errors of `codec.encode`.
        :raises InvalidArguments: they do not fit, would come back as other ones, or JSON or
            Postgres cannot hold them.
        :raises PayloadTooLarge: the JSON is over the limit.
        """
        try:
            values: dict[str, Any] = self._validator.validate_python(given)
        except Exception as error:
            raise self._mismatch(error) from _cause(error)
        text = self._write(values)
        if text is None:
            text = codec.encode(self._dump(values), what=what, limit=limit)
        else:
            codec.check_size(
                len(text) if text.isascii() else len(text.encode()), what=what, limit=limit
            )
            if len(text) <= _SHORT and text.isascii() and self._returns(given):
                return text
        try:
            self._verify(given, values, text)
        except InvalidArguments:
            # pydantic writes null for NaN; the error of `codec` names its place.
            codec.encode(self._dump(values), what=what, limit=limit)
            raise
        return text

    def decode(self, text: str) -> dict[str, Any]:
        """Return the values of JSON text. Raises `InvalidArguments`."""
        try:
            found: dict[str, Any] = self._validator.validate_json(text)
        except Exception as error:
            raise self._mismatch(error) from _cause(error)
        return found

    def _returns(self, given: Mapping[str, Any]) -> bool:
        """Whether the values have types that are known to come back unchanged."""
        for name, value in given.items():
            cls = type(value)
            if cls not in self._leaves.get(name, ()):
                return False
            if cls is datetime and value.tzinfo is not None and value.tzinfo is not UTC:
                return False
        return True

    def _write(self, values: dict[str, Any]) -> str | None:
        """Return values as JSON text; None if `codec` has to look at them."""
        try:
            text = self._writer.to_json(values, by_alias=True, warnings=False)
        except Exception:
            return None
        # Per byte of the text, the search for one byte takes 0.03 ns, and for several 0.5 ns.
        return None if b"\\" in text and b"\\u0000" in text else text.decode()

    def _dump(self, values: dict[str, Any], *names: str) -> Any:
        """Return values as those that `codec` writes, if they can be."""
        include = set(names) or None
        try:
            return self._writer.to_python(
                values, mode="json", by_alias=True, warnings=False, include=include
            )
        except Exception as error:
            if not names:
                for name in values:
                    self._dump(values, name)
            who = f"{self._name(*names)}: " if names else ""
            said = " ".join(str(error).split())[:300]
            raise self._error(f"{who}cannot be written as JSON: {said}") from None

    def _verify(self, given: Mapping[str, Any], values: Mapping[str, Any], text: str) -> None:
        """Raise `InvalidArguments` if a value would come back from the text as another one."""
        try:
            back = self.decode(text)
        except InvalidArguments as error:
            raise InvalidArguments(f"{error}: this is what would come back from JSON") from None
        rest = "" if self._rest is None else self._rest.name
        for name in given:
            rule = name if name in self._leaves else rest
            value = values[name] if rule in self._altered else given[name]
            try:
                compare(value, back[name], self._named[rule])
            except Difference as difference:
                raise self._error(
                    f"{self._name(name)}: {shown(value)} would come back from JSON as "
                    f"{shown(back[name])}: {difference.advice()}"
                ) from None

    def _name(self, name: str) -> str:
        if self._rest is None or name in self._leaves or name in self.useless:
            return self._call(name)
        return f"parameter **{self._rest.name}[{name!r}]"

    def _mismatch(self, error: Exception) -> InvalidArguments:
        if not isinstance(error, ValidationError):  # raised by a user's validator
            return self._error(f"{type(error).__name__}: {error}")
        found = error.errors(include_url=False, include_context=False)
        messages = [self._message(dict(line)) for line in found[:_LISTED]]
        if len(found) > _LISTED:
            messages.append(f"and {len(found) - _LISTED} more")
        return self._error("; ".join(messages))

    def _error(self, message: str) -> InvalidArguments:
        return InvalidArguments(f"{self._path}: {message}")

    def _message(self, error: dict[str, Any]) -> str:
        where = error["loc"]
        if not where:
            return str(error["msg"])
        name, place = str(where[0]), "".join(f"[{part!r}]" for part in where[1:])
        if len(where) == 1 and error["type"] == "missing":
            return f"missing a required argument: {name!r}"
        if len(where) == 1 and error["type"] == "extra_forbidden":
            rest = "" if self._rest is None else self._rest.name
            if why := self.useless.get(name) or self.useless.get(rest):
                return f"{self._name(name)}: {why}"
            return f"got an unexpected keyword argument {name!r}"
        if error["type"] == "missing":
            return f"{self._name(name)}{place}: {error['msg']}"
        return f"{self._name(name)}{place}: {error['msg']}, not {shown(error['input'])}"


class _Rest:
    """Metadata of a TypedDict: the type of further keys."""

    def __init__(self, rest: Parameter) -> None:
        self._rest = rest

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        schema = handler(source)
        inner: Any = handler.resolve_ref_schema(schema)
        inner["extra_behavior"] = "allow"
        inner["extras_schema"] = handler.generate_schema(_type_of(self._rest))
        return schema


def _type_of(parameter: Parameter) -> Any:
    # The object makes each annotation unique: typing caches equal ones, and unions are equal in any
    # order, although text is read as the first type of a union that fits.
    return Any if parameter.free else Annotated[parameter.annotation, object()]


def _leaves_of(annotation: Any) -> frozenset[type]:
    """Return the types of an annotation if it is one of `_LEAVES`, or None."""
    union = get_origin(annotation) in (Union, UnionType)
    types = get_args(annotation) if union else (annotation,)
    if all(isinstance(one, type) and one in _LEAVES for one in types):
        found = frozenset(types)
        return found if len(found - {NoneType}) < 2 else frozenset()
    return frozenset()


def _mentioned(schema: object, held: bool = False) -> Iterator[object]:
    """Yield the kinds and classes of a schema, and `_ALTERED` if validators may change values.

    :param held: whether the schema is of a field of an object, whose validators have already run.
    """
    parts: Iterable[object] = ()
    if isinstance(schema, Mapping):
        parts = [part for key, part in schema.items() if key != "metadata"]
        if isinstance(kind := schema.get("type"), str):
            yield kind
            if kind != "typed-dict":  # nothing is an instance of one
                yield schema.get("cls")
            yield from map(type, schema.get("expected", ()))
            held = held or kind in ("model", "dataclass")
            if not held and (kind.startswith(_FUNCTIONS) or not _RULES.isdisjoint(schema)):
                yield _ALTERED
    elif isinstance(schema, list | tuple):
        parts = schema
    for part in parts:
        yield from _mentioned(part, held)


def _cause(error: Exception) -> Exception | None:
    """Return the cause that a traceback shows: None for pydantic's error, which the message has."""
    return None if isinstance(error, ValidationError) else error
