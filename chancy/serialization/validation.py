"""Values of annotated types: what fits, and how it becomes JSON and comes back.

pydantic does the work. It is imported with this module, which is loaded when a value is met that
needs it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import GenericAlias
from typing import Annotated, Any, Literal, NotRequired, Required

import typing_extensions
from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic_core import CoreConfig, SchemaSerializer

from chancy.serialization.annotations import DEEPEST, Parameter, Unresolved, ValueMismatch
from chancy.serialization.roundtrip.compiler import RoundTripCompiler, is_suspect, may_be_infinite
from chancy.serialization.roundtrip.equality import Equality, advice
from chancy.serialization.roundtrip.schema_rules import (
    Schema,
    SchemaRules,
    alters,
    mentions,
    named_types,
)
from chancy.serialization.roundtrip.value_checks import NEVER, Look
from chancy.text import shown

#: Values are of the types that are asked for, and are not made to be. What has a configuration
#: of its own, a model for example, goes by that.
_CONFIG = ConfigDict(
    strict=True,
    ser_json_bytes="base64",
    val_json_bytes="base64",
    allow_inf_nan=False,
)
#: Applied to all that has no configuration of its own: serializers do not inherit from a TypedDict.
_WRITING = CoreConfig(ser_json_bytes="base64")

# Type checkers know it as a form of syntax.
_make_typed_dict: Callable[[str, dict[str, Any]], Any] = vars(typing_extensions)["TypedDict"]

_NONE: tuple[str, ...] = ()
#: The name for all further keywords.
_REST = "rest"


class Validator:
    """The values of several names, for example the arguments of a function.

    :param rest: the type of further names; None if there may be none.
    :param call: how a parameter is called in an error, for example ``parameter 'to'``.
    """

    def __init__(
        self, parameters: Sequence[Parameter], rest: Parameter | None, call: Callable[[str], str]
    ) -> None:
        #: The names whose annotations pydantic can do nothing with, and why.
        self.useless = {
            one.name: str(one.annotation)
            for one in parameters
            if isinstance(one.annotation, Unresolved)
        }
        self._misfits = MismatchMessages(call, self.useless)
        self._parameters = [one for one in parameters if one.name not in self.useless]
        self._free = {one.name for one in self._parameters if one.free}
        self._open = rest is not None
        self._rest = None if rest is None or rest.free else _rest_of(rest)
        try:
            adapter = self._adapter(self._parameters)
        except Exception:
            self._leave_out()
            adapter = self._adapter(self._parameters)
        self._validator = adapter.validator
        schema = adapter.core_schema
        definitions: Sequence[Schema] = ()
        if schema["type"] == "definitions":
            definitions, schema = schema["definitions"], schema["schema"]
        self._writer = SchemaSerializer(adapter.core_schema, _WRITING)
        self._known = {one.name for one in self._parameters}
        self._judge(schema, definitions)

    def _adapter(self, parameters: Iterable[Parameter]) -> TypeAdapter[dict[str, Any]]:
        # With something of its own: typing remembers by what is equal, as unions of another order
        # are, and what a union has first is what text is read as.
        fields = {
            one.name: (Required if one.required else NotRequired)[
                Any if one.free else Annotated[one.annotation, object()]
            ]
            for one in parameters
        }
        made = _make_typed_dict("Arguments", fields)
        extra: Literal["allow", "forbid"] = "allow" if self._open else "forbid"
        config: ConfigDict = {**_CONFIG, "extra": extra}
        made.__pydantic_config__ = config
        return TypeAdapter(made)

    def _leave_out(self) -> None:
        """Find the annotations that pydantic can do nothing with. Their values are refused."""
        for one in self._parameters:
            try:
                self._adapter([one])
            except Exception as error:
                said = str(error).splitlines()[0]
                self.useless[one.name] = (
                    f"values of its annotation {shown(one.annotation)} cannot be stored: {said}"
                )
        self._parameters = [one for one in self._parameters if one.name not in self.useless]

    def _more(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The values of further names."""
        if not self._open:
            return {}
        return {name: value for name, value in values.items() if name not in self._known}

    def _judge(self, schema: Schema, definitions: Sequence[Schema]) -> None:
        parts = [schema, *definitions]
        self._floats = mentions(parts, "float", "any")
        # Whether null is to be told from NaN by a look at the floats.
        self._finite = self._floats and mentions(parts, "nullable", "none")
        exactness, proofs = (
            SchemaRules(definitions),
            RoundTripCompiler(definitions, finite=self._finite),
        )
        # What says whether values have to be read back, for names of which they may have to be;
        # and those whose values a validator of the user's may have changed.
        self._proofs: list[tuple[str, frozenset[type], Look | None]] = []
        self._altered: set[str] = set()
        self._same: dict[str, Equality] = {}
        # pydantic reads 200 levels of lists and objects, and there may be more.
        self._deep = bool(self._free or definitions) or mentions(schema, "any")
        for name, field in schema["fields"].items():
            if name in self._free:
                continue
            parts = [field, *definitions]
            proof = proofs.of(field) if exactness.exact(field) else NEVER
            if proof is not None:
                self._proofs.append((name, proof.types, proof.more))
            if alters(parts):
                self._altered.add(name)
            self._same[name] = Equality(named_types(parts))

    def check(self, values: dict[str, Any]) -> dict[str, Any]:
        """The values as their annotations have them. Raises `ValueMismatch`."""
        try:
            found: dict[str, Any] = self._validator.validate_python(values)
        except Exception as error:
            raise self._misfits.of(error) from cause(error)
        if self._rest is not None and (more := self._more(found)):
            found |= self._rest.check({_REST: more})[_REST]
        return found

    def load(self, text: str) -> dict[str, Any]:
        """The values of JSON text. Raises `ValueMismatch`."""
        try:
            found: dict[str, Any] = self._validator.validate_json(text)
        except Exception as error:
            raise self._misfits.of(error) from cause(error)
        if self._rest is not None and (more := self._more(found)):
            found |= self._rest.load(json.dumps({_REST: more}))[_REST]
        return found

    def doubts(self, given: Mapping[str, Any]) -> Collection[str]:
        """The names of values that may come back from JSON as other ones."""
        found = _NONE
        for name, types, more in self._proofs:
            if name not in given:
                continue
            value = given[name]
            try:
                sure = type(value) in types and (more is None or more(value))
            except Exception:  # it lacks a field, is too deep, or the user's function refuses it
                sure = False
            if not sure:
                found = (*found, name)
        if self._rest is not None:
            found = (*found, *self._more(given))
        return found

    def write(self, values: dict[str, Any], limit: int, *, sure: bool) -> str | None:
        """Checked values as JSON text, the quick way; None if `dump` has to look at them.

        :param sure: whether there are no `doubts`.

        pydantic writes null for NaN where a model does not say otherwise, and any character. What
        an object holds that is not of its types is found by `verify`: to be warned takes 0.6 µs.
        """
        if self._open or self._free:
            return None
        try:
            text = self._writer.to_json(values, by_alias=True, warnings=False)
        except Exception:
            return None
        # To find one byte takes 0.03 ns for each of the text, and to find several 0.5.
        if len(text) > limit or (b"\\" in text and b"\\u0000" in text):
            return None
        if self._floats and not (sure and self._finite) and may_be_infinite(text):
            return None
        return text.decode()

    def dump(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return checked values as JSON values; unannotated ones stay. Raises `ValueMismatch`."""
        if not (self._open or self._free):
            return self._dump(values)
        apart = self._more(values)
        if self._rest is not None and apart:
            apart = self._rest.dump({_REST: apart})[_REST]
        if self._free:
            apart |= {name: value for name, value in values.items() if name in self._free}
        return {**self._dump({k: v for k, v in values.items() if k not in apart}), **apart}

    def _dump(self, values: dict[str, Any]) -> dict[str, Any]:
        try:
            found: dict[str, Any] = self._writer.to_python(
                values, mode="json", by_alias=True, warnings="error"
            )
            return found
        except Exception as error:
            raise ValueMismatch(self._unwritable(values, error)) from None

    def verify(
        self,
        given: Mapping[str, Any],
        values: Mapping[str, Any],
        doubts: Collection[str],
        text: str,
    ) -> None:
        """Raise `ValueMismatch` if a value would come back from the text as another one.

        :param given: the values before they were checked.
        """
        if is_suspect(text):
            doubts = values.keys() - self._free
        if not doubts and not (self._deep and text.count("[") + text.count("{") > DEEPEST):
            return
        try:
            back = self.load(text)
        except ValueMismatch as misfit:
            raise ValueMismatch(f"{misfit}: this is what would come back from JSON") from None
        for name in doubts:
            value = values[name] if name in self._altered else given[name]
            if not self.same(name, value, back[name]):
                raise ValueMismatch(
                    f"{self._misfits.call(name)}: {shown(value)} would come back from JSON as "
                    f"{shown(back[name])}: {advice(value)}"
                )

    def same(self, name: str, one: object, other: object) -> bool:
        """Whether a value of a name came back as it was."""
        if self._rest is not None and name not in self._same:
            return self._rest.same(_REST, one, other)
        return self._same[name](one, other)

    def _unwritable(self, values: Mapping[str, Any], error: Exception) -> str:
        """Which value cannot be written, by writing one after the other."""
        for one in self._parameters:
            if one.name in values and not one.free:
                writer = SchemaSerializer(self._adapter([one]).core_schema, _WRITING)
                try:
                    writer.to_python(
                        {one.name: values[one.name]}, mode="json", by_alias=True, warnings="error"
                    )
                except Exception as found:
                    said = self._misfits.call(one.name)
                    return f"{said}: cannot be written as JSON: {_brief(found)}"
        return f"cannot be written as JSON: {_brief(error)}"


def _brief(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


def _rest_of(rest: Parameter) -> Validator:
    """Of further keywords, which are all of one type."""
    of_all: Any = GenericAlias(dict, (str, rest.annotation))
    every = Parameter(_REST, of_all, True, frozenset())
    return Validator([every], None, lambda _: f"parameter **{rest.name}")


#: The most errors that one message lists.
_LISTED = 3


class MismatchMessages:
    """Creates the messages for a set of named values.

    :param call: returns how errors name a parameter, for example ``parameter 'to'``.
    :param useless: names whose annotations pydantic does not support, and why.
    """

    def __init__(self, call: Callable[[str], str], useless: Mapping[str, str]) -> None:
        self.call = call
        self._useless = useless

    def of(self, error: Exception) -> ValueMismatch:
        if isinstance(error, ValidationError):
            return ValueMismatch(self._message(error))
        return ValueMismatch(f"{type(error).__name__}: {error}")  # raised by a user's validator

    def _message(self, error: ValidationError) -> str:
        found = error.errors(include_url=False, include_context=False)
        messages = [self._line(dict(line)) for line in found[:_LISTED]]
        if len(found) > _LISTED:
            messages.append(f"and {len(found) - _LISTED} more")
        return "; ".join(messages)

    def _line(self, error: dict[str, Any]) -> str:
        where = error["loc"]
        if not where:
            return str(error["msg"])
        name, place = str(where[0]), "".join(f"[{part!r}]" for part in where[1:])
        if len(where) == 1 and error["type"] == "missing":
            return f"missing a required argument: {name!r}"
        if len(where) == 1 and error["type"] == "extra_forbidden":
            if name in self._useless:
                return f"{self.call(name)}: {self._useless[name]}"
            return f"got an unexpected keyword argument {name!r}"
        if error["type"] == "missing":
            return f"{self.call(name)}{place}: {error['msg']}"
        return f"{self.call(name)}{place}: {error['msg']}, not {shown(error['input'])}"


def cause(error: Exception) -> Exception | None:
    """Return the cause that a traceback shows: None for pydantic's error, which the message has."""
    return None if isinstance(error, ValidationError) else error
