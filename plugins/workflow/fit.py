"""Whether the result type of one function fits a parameter of another. Pure.

Only certain mismatches are refused here: both values are validated again when the steps run.
"""

from __future__ import annotations

import dataclasses
import inspect
import types
from collections.abc import Mapping, Sequence, Set
from enum import Enum
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, is_typeddict

from chancy.serialization.annotations import Unresolved

#: Kinds of JSON values; None: any.
Kinds = frozenset[str] | None

_ANYTHING: tuple[object, ...] = (Any, object, inspect.Parameter.empty)
_SCALARS: Mapping[type, str] = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    type(None): "null",
}
_ARRAYS = (list, tuple, set, frozenset)


def fits(given: Any, wanted: Any) -> bool:
    """False if no value of `given`, passed as JSON, can be a value of `wanted`."""
    given, wanted = _plain(given), _plain(wanted)
    if _free(given) or _free(wanted):
        return True
    if members := _members(given):
        return all(fits(member, wanted) for member in members)
    if members := _members(wanted):
        return any(fits(given, member) for member in members)
    if Literal in (get_origin(given), get_origin(wanted)):
        return _literal_fits(given, wanted)
    if not _kinds_meet(kinds(given), kinds(wanted)):
        return False
    if isinstance(given, type) and isinstance(wanted, type):
        return _class_fits(given, wanted)
    if items_of(given) is not None and items_of(wanted) is not None:
        return fits(items_of(given), items_of(wanted))
    if get_origin(given) in (dict, Mapping) and get_origin(wanted) in (dict, Mapping):
        return fits(get_args(given)[-1], get_args(wanted)[-1])
    return True


def part_of(annotation: Any, path: Sequence[str | int]) -> Any:
    """The annotation of a part of a value. Raises `LookupError` if the value has no such part."""
    for key in path:
        annotation = _part(_plain(annotation), key)
    return annotation


def items_of(annotation: Any) -> Any:
    """The annotation of the items of a list; None if it is not a list, or not declared."""
    annotation = _plain(annotation)
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (list, set, frozenset, Sequence, Set) and arguments:
        return arguments[0]
    if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        return arguments[0]
    return None


def kinds(annotation: Any) -> Kinds:
    """The kinds of JSON values of an annotation; None if unknown."""
    origin = get_origin(annotation) or annotation
    if not isinstance(origin, type):
        return None
    if origin in _SCALARS:
        return frozenset({_SCALARS[origin]})
    if is_typeddict(origin) or dataclasses.is_dataclass(origin) or _is_model(origin):
        return frozenset({"object"})
    if issubclass(origin, Enum):
        return None
    if issubclass(origin, dict) or origin is Mapping:
        return frozenset({"object"})
    if issubclass(origin, _ARRAYS) or origin in (Sequence, Set):
        return frozenset({"array"})
    if origin.__module__ in ("datetime", "uuid", "pathlib", "ipaddress"):
        return frozenset({"string", "number"} if origin.__name__ == "timedelta" else {"string"})
    return None


def _kinds_meet(given: Kinds, wanted: Kinds) -> bool:
    if given is None or wanted is None:
        return True
    # An int fits a float, but not the other way round.
    return bool(given & wanted) or ("integer" in given and "number" in wanted)


def _plain(annotation: Any) -> Any:
    """The annotation without ``Annotated`` and ``NewType``."""
    while True:
        if annotation is None:
            return type(None)
        if get_origin(annotation) is Annotated:
            annotation = get_args(annotation)[0]
        elif hasattr(annotation, "__supertype__"):
            annotation = annotation.__supertype__
        else:
            return annotation


def _free(annotation: Any) -> bool:
    return isinstance(annotation, TypeVar | Unresolved) or any(
        annotation is one for one in _ANYTHING
    )


def _members(annotation: Any) -> tuple[Any, ...]:
    if get_origin(annotation) in (Union, types.UnionType):
        return get_args(annotation)
    return ()


def _literal_fits(given: Any, wanted: Any) -> bool:
    if get_origin(given) is not Literal:
        return any(fits(given, type(value)) for value in get_args(wanted))
    if get_origin(wanted) is not Literal:
        return all(fits(type(value), wanted) for value in get_args(given))
    return set(get_args(given)) <= set(get_args(wanted))


def _class_fits(given: type, wanted: type) -> bool:
    """Whether two classes of overlapping kinds fit: objects of two named types do not."""
    both_named = _named(given) and _named(wanted)
    return not both_named or is_typeddict(wanted) or issubclass(given, wanted)


def _named(kind: type) -> bool:
    return dataclasses.is_dataclass(kind) or _is_model(kind) or is_typeddict(kind)


def _is_model(kind: type) -> bool:
    return hasattr(kind, "model_fields") and hasattr(kind, "__pydantic_validator__")


def _part(annotation: Any, key: str | int) -> Any:
    if _free(annotation) or _members(annotation):
        return Any
    found = kinds(annotation)
    if found is None:
        return Any
    if found == frozenset({"array"}):
        if isinstance(key, str):
            raise LookupError(f"a list has no {key!r}")
        item = items_of(annotation)
        return Any if item is None else item
    if found != frozenset({"object"}):
        raise LookupError(f"a value that is neither a list nor an object has no {key!r}")
    if isinstance(annotation, type) and _named(annotation):
        return _field(annotation, str(key))
    arguments = get_args(annotation)
    return arguments[1] if len(arguments) == 2 else Any


def _field(kind: type, key: str) -> Any:
    if _is_model(kind):
        fields: Mapping[str, Any] = vars(kind).get("__pydantic_fields__") or {}
        for name, field in fields.items():
            if key in (name, field.serialization_alias, field.alias):
                return field.annotation
        return Any if not fields else _no_field(kind, key)
    known: dict[str, Any] = {}
    for one in reversed(kind.__mro__):
        known |= inspect.get_annotations(one)
    if key not in known:
        return _no_field(kind, key)
    return Any if isinstance(known[key], str) else known[key]


def _no_field(kind: type, key: str) -> Any:
    """Any if pydantic may write such a key beside the fields; otherwise an error."""
    config = getattr(kind, "model_config", None) or getattr(kind, "__pydantic_config__", {})
    if config.get("extra") == "allow":
        return Any
    if written := getattr(kind, "__pydantic_decorators__", None):
        computed = written.computed_fields
        if written.model_serializers or any(
            key in (name, one.info.alias) for name, one in computed.items()
        ):
            return Any
    raise LookupError(f"{kind.__qualname__} has no field {key!r}")
