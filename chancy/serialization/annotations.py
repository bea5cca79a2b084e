"""The annotations of a function's parameters and result, read without pydantic.

Most functions of a queue take numbers, strings and plain lists. For those, checking the type of
each value is equivalent to a validator, takes a tenth of the time, and needs no import.
"""

from __future__ import annotations

import inspect
import sys
import types
import typing
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Generator,
    Iterable,
    Mapping,
    Sequence,
)
from dataclasses import dataclass
from typing import (
    Annotated,
    Any,
    ClassVar,
    Final,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
)

from chancy.attempt.control import Cancel, Retry, Snooze
from chancy.text import shown

#: The attribute of a function that takes the items of several jobs; holds its `Batching`.
BATCHING = "__chancy_batching__"
#: Types whose values JSON holds unchanged, if they have exactly this type.
_PLAIN = (bool, int, float, str, type(None), list, dict)
#: Annotations that do not restrict a value.
_ANYTHING: tuple[object, ...] = (
    Any,
    object,
    inspect.Parameter.empty,
    typing.NoReturn,
    typing.Never,
)


@dataclass(frozen=True, slots=True)
class Unresolved:
    """An annotation whose names cannot be resolved."""

    text: str
    why: str

    def __str__(self) -> str:
        return (
            f"its annotation {self.text} cannot be resolved ({self.why}): import what it names "
            "where the module is loaded, not for type checkers alone"
        )


@dataclass(frozen=True, slots=True)
class ReadAsIterator:
    """An annotation of a result for which stored values would come back as an iterator."""

    text: str

    def __str__(self) -> str:
        return (
            f"values of its annotation {self.text} cannot be stored, because they would come back "
            "as an iterator: annotate list[…]"
        )


class Anything(frozenset[type]):
    """The set of all types: only the rules of JSON apply."""

    def __contains__(self, kind: object) -> bool:
        return True


ANYTHING: Final = Anything({object})


@dataclass(frozen=True, slots=True)
class Parameter:
    """The annotation of one parameter, or of a result.

    :param kinds: a value with exactly one of these types fits; for other values the validator
        decides. `ANYTHING` without an annotation. Empty if every value needs the validator.
    """

    name: str
    annotation: Any
    required: bool
    kinds: frozenset[type]

    @property
    def free(self) -> bool:
        """Whether any value fits."""
        return self.kinds is ANYTHING


@dataclass(frozen=True, slots=True)
class Annotations:
    """The annotations of a function. ``rest`` stands for ``**kwargs``, if it has any."""

    parameters: tuple[Parameter, ...]
    rest: Parameter | None
    result: Parameter

    NOTHING: ClassVar[Annotations]

    @classmethod
    def of(cls, function: Callable[..., Any]) -> Annotations:
        """Read a function. Never raises: an unresolved annotation is reported when it is used."""
        try:
            signature = inspect.signature(function)
        except (TypeError, ValueError):  # not a Python function
            return cls.NOTHING
        scope = _scope(function)
        parameters: list[Parameter] = []
        rest = None
        for parameter in signature.parameters.values():
            annotation = _resolved(parameter.annotation, scope)
            required = parameter.default is parameter.empty
            if parameter.kind is parameter.VAR_KEYWORD:
                # typing and typing_extensions each have their own Unpack.
                if getattr(get_origin(annotation), "_name", None) == "Unpack":
                    try:
                        parameters += _unpacked(get_args(annotation)[0], scope)
                        continue
                    except Exception as error:  # a name of the TypedDict
                        annotation = _unresolved(annotation, error)
                rest = _parameter(parameter.name, annotation, required=False)
            else:
                parameters.append(_parameter(parameter.name, annotation, required=required))
        result = _result(_resolved(signature.return_annotation, scope), function)
        if hasattr(function, BATCHING):
            result = _without_failures(result)
        return cls(tuple(parameters), rest, result)

    def without(self, names: Collection[str]) -> Annotations:
        """The same, without some of the parameters."""
        left = tuple(one for one in self.parameters if one.name not in names)
        return Annotations(left, self.rest, self.result)

    def of_item(self) -> Annotations:
        """Those of a function that returns one item of the list that this one returns."""
        return Annotations(
            (), None, _parameter("return", _item(self.result.annotation), required=True)
        )


def _parameter(name: str, annotation: Any, *, required: bool) -> Parameter:
    return Parameter(name, annotation, required, kinds_of(annotation))


def _unpacked(keywords: Any, scope: Mapping[str, Any]) -> list[Parameter]:
    """Return the parameters that ``**keywords: Unpack[…]`` stands for."""
    needed: frozenset[str] = getattr(keywords, "__required_keys__", frozenset())
    parameters = []
    for name, annotation in typing.get_type_hints(keywords, include_extras=True).items():
        marked, required = get_origin(annotation), name in needed
        if marked in (Required, NotRequired):
            required, annotation = marked is Required, get_args(annotation)[0]
        parameters.append(_parameter(name, _resolved(annotation, scope), required=required))
    return parameters


def _scope(function: Callable[..., Any]) -> Mapping[str, Any]:
    """Return the namespace in which the names of annotations are resolved."""
    inner = inspect.unwrap(function)
    found = getattr(inner, "__globals__", None)
    if found is None:
        module = sys.modules.get(getattr(inner, "__module__", None) or "")
        found = vars(module) if module is not None else {}
    generic = {param.__name__: param for param in getattr(inner, "__type_params__", ())}
    return {**found, **generic} if generic else found


def _resolved(annotation: Any, scope: Mapping[str, Any]) -> Any:
    if annotation is inspect.Parameter.empty:
        return annotation
    holder = types.SimpleNamespace(__annotations__={"it": annotation})
    try:
        return typing.get_type_hints(holder, globalns=dict(scope), include_extras=True)["it"]
    except Exception as error:
        return _unresolved(annotation, error)


def _unresolved(annotation: Any, error: Exception) -> Unresolved:
    text = annotation if isinstance(annotation, str) else shown(annotation)
    return Unresolved(text, f"{type(error).__name__}: {error}")


def kinds_of(annotation: Any) -> frozenset[type]:
    """See `Parameter.kinds`."""
    if any(annotation is one for one in _ANYTHING) or isinstance(annotation, typing.TypeVar):
        return ANYTHING
    for plain in _PLAIN:
        if annotation is plain:
            return frozenset({plain})
    if supertype := getattr(annotation, "__supertype__", None):  # a NewType
        return kinds_of(supertype)
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        return _kinds_of_union([kinds_of(argument) for argument in arguments])
    if any(not any(argument is one for one in (Any, object)) for argument in arguments[-1:]):
        return frozenset()
    if origin is list or annotation is typing.List:  # noqa: UP006
        return frozenset({list})
    if origin in (dict, Mapping) and arguments[:1] in ((str,), (Any,)):
        return frozenset({dict})
    return frozenset({dict}) if annotation is typing.Dict else frozenset()  # noqa: UP006


def _kinds_of_union(members: Sequence[frozenset[type]]) -> frozenset[type]:
    if any(member is ANYTHING for member in members):
        return ANYTHING
    # If one member needs the validator, all values do.
    return frozenset().union(*members) if all(members) else frozenset()


def _result(annotation: Any, function: Callable[..., Any]) -> Parameter:
    """Return the annotation of the awaited result, without control results."""
    if isinstance(annotation, Unresolved):
        annotation = Any  # only the rules of JSON apply
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated and get_origin(arguments[0]) in (Union, types.UnionType):
        return Parameter("return", annotation, True, frozenset())
    if _awaited(origin or annotation) and not inspect.iscoroutinefunction(function):
        # Also futures and tasks of asyncio, which is not imported for this.
        told = origin is Coroutine or len(arguments) == 1
        annotation = arguments[-1] if told else Any
        origin, arguments = get_origin(annotation), get_args(annotation)
    if any((get_origin(one) or one) in (Iterable, Generator) for one in _members(annotation)):
        return Parameter("return", ReadAsIterator(shown(annotation)), True, frozenset())
    if origin in (Union, types.UnionType):
        results = [one for one in arguments if one not in (Snooze, Cancel, Retry)]
        if len(results) < len(arguments):
            annotation = Union[tuple(results)] if results else Any  # noqa: UP007
    elif annotation in (Snooze, Cancel, Retry):
        annotation = Any
    return _parameter("return", annotation, required=True)


def _item(annotation: Any) -> Any:
    """The annotation of the items of a list, which may be optional; Any if it does not say."""
    lists = [one for one in _members(annotation) if one is not types.NoneType]
    if len(lists) == 1 and get_origin(lists[0]) in (list, tuple, Sequence):
        arguments = get_args(lists[0])
        if len(arguments) == 1 or arguments[1:] == (Ellipsis,):
            return arguments[0]
    return Any


def _without_failures(result: Parameter) -> Parameter:
    """A list of results, without the exceptions and control results that may stand for one."""
    members = _members(_item(result.annotation))
    results = [
        one
        for one in members
        if not (isinstance(one, type) and issubclass(one, Exception | Snooze | Cancel))
    ]
    if len(results) == len(members):
        return result
    item: Any = Union[tuple(results)] if results else Any  # noqa: UP007
    return _parameter("return", list[item], required=True)


def _awaited(kind: object) -> bool:
    """Whether values of a class are awaited before they are stored."""
    return isinstance(kind, type) and issubclass(kind, Awaitable)


def _members(annotation: Any) -> tuple[Any, ...]:
    """The members of a union; another annotation itself."""
    union = get_origin(annotation) in (Union, types.UnionType)
    return get_args(annotation) if union else (annotation,)


Annotations.NOTHING = Annotations(
    (), Parameter("arguments", Any, False, ANYTHING), Parameter("return", Any, True, ANYTHING)
)
