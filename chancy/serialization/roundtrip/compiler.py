"""Which values of exact types come back from JSON for certain, by a look at what they hold.

To read a value back and compare takes as long as to write it; a look at its types takes a tenth.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from types import NoneType
from typing import Any, cast
from uuid import UUID

from pydantic_core import SchemaValidator

from chancy.serialization.roundtrip.schema_rules import Schema, members, mentions, preferred
from chancy.serialization.roundtrip.value_checks import (
    NEVER,
    Look,
    RoundTripCheck,
    any_of,
    array_of,
    dict_of,
    items_of,
    moments,
    object_of,
    one_of,
    or_none,
)

#: The type of what was validated.
_TYPES: Mapping[str, type] = {
    "none": NoneType, "bool": bool, "int": int, "float": float, "str": str, "bytes": bytes,
    "decimal": Decimal, "uuid": UUID, "date": date, "time": time, "datetime": datetime,
    "timedelta": timedelta, "list": list, "set": set, "frozenset": frozenset, "tuple": tuple,
    "dict": dict, "typed-dict": dict,
}  # fmt: skip
#: The keys of schemas that restrict no value of the type.
_FREE = frozenset(
    {
        "type", "metadata", "ref", "strict", "microseconds_precision", "fields", "cls", "cls_name",
        "items_schema", "keys_schema", "values_schema", "variadic_item_index", "config",
        "computed_fields", "extra_behavior", "total",
    }
)  # fmt: skip
_FIELDS = frozenset({"default", "model-field", "dataclass-field", "typed-dict-field"})

#: What pydantic writes in keys for half of a surrogate pair.
_REPLACED = "\N{REPLACEMENT CHARACTER}"
#: Digits of the longest number that Python and pydantic read.
_DIGITS = 4300
#: Characters of the shortest text of a UUID.
_SHORTEST_UUID = 32


class RoundTripCompiler:
    """Makes the proofs of exact schemas.

    Values that were validated strictly need none, but for ints that become floats and moments
    with seconds in their offset. Objects need it of all that they hold: it was validated when
    they were made, if then, and may be of subclasses, of which JSON keeps what the class has.

    :param finite: whether floats have to be finite, which validation does not say of those that
        an object holds: pydantic writes null for others.
    """

    def __init__(self, definitions: Iterable[Schema] = (), *, finite: bool = False) -> None:
        self._definitions = {definition["ref"]: definition for definition in definitions}
        self._made: dict[tuple[str, bool], RoundTripCheck | None] = {}
        self._finite = finite

    def of(self, schema: Schema, *, held: bool = False) -> RoundTripCheck | None:
        """The proof of an exact schema; None if its values need none.

        :param held: whether an object holds them.
        """
        kind = schema["type"]
        match kind:
            case "definition-ref":
                return self._of_reference(schema["schema_ref"], held)
            case "nullable":
                proof = self.of(schema["schema"], held=held)
                return None if proof is None else or_none(proof)
            case "model" | "dataclass":
                return self._of_object(schema)
            case "union" | "tagged-union":
                return self._of_union(members(schema), held)
            case "literal":
                return one_of(schema["expected"]) if held else None
            case "enum":
                return RoundTripCheck(frozenset({schema["cls"]})) if held else None
            case "named-tuple":
                proofs = [self._held(part["schema"]) for part in schema["fields"]]
                return items_of(schema["cls"], proofs)
            case "typed-dict":
                return self._of_typed_dict(schema, held)
            case "dict" | "list" | "set" | "frozenset" | "tuple":
                return self._of_container(schema, held)
            case "function-after" | "function-before":
                return self._of_function(schema)
            case _ if kind in _FIELDS:
                return self.of(schema["schema"], held=held)
            case _:
                return self._of_leaf(schema, held)

    def _held(self, schema: Schema) -> RoundTripCheck:
        return self.of(schema, held=True) or NEVER

    def _of_reference(self, ref: str, held: bool) -> RoundTripCheck | None:
        key, schema = (ref, held), self._definitions[ref]
        if key not in self._made:
            self._made[key] = NEVER
            if schema["type"] in ("model", "dataclass"):
                # Those that hold others of their class find out when they are asked.
                self._made[key] = RoundTripCheck(
                    frozenset({schema["cls"]}), lambda value: made is None or made.holds(value)
                )
            made = self.of(schema, held=held)
            self._made[key] = made
        return self._made[key]

    def _of_object(self, schema: Schema) -> RoundTripCheck:
        fields = schema["schema"].get("fields")
        if fields is None:  # a model of one value without a name
            return NEVER
        parts = fields.items() if isinstance(fields, Mapping) else [(f["name"], f) for f in fields]
        proofs = {name: self._held(part) for name, part in parts}
        if any(not proof.types for proof in proofs.values()):
            return NEVER
        return object_of(schema["cls"], proofs, slotted=bool(schema.get("slots")))

    def _of_union(self, choices: Iterable[Schema], held: bool) -> RoundTripCheck | None:
        found = [
            self._definitions[one["schema_ref"]] if one["type"] == "definition-ref" else one
            for one in choices
        ]
        preference = preferred(found)
        # What is preferred is known of strict reading alone; and bytes that are no text are written
        # in a union as they are at the top, and read as the object that holds them says.
        if held and (preference is not None or mentions(found, "bytes", "definition-ref")):
            return NEVER
        if preference is not None:
            proofs = [self._held(one) for one in found if one["type"] != "str"]
            return any_of([*proofs, _text_beside(preference)])
        if not held and all(self.of(one) is None for one in found):
            return None
        return any_of([self._held(one) for one in found])

    def _of_typed_dict(self, schema: Schema, held: bool) -> RoundTripCheck:
        """Keys that are not its own may be left out, whatever is held."""
        fields = schema["fields"]
        proofs = {name: self.of(part, held=held) for name, part in fields.items()}
        needed = {name for name, part in fields.items() if part.get("required", True)}
        asked = [(name, proof) for name, proof in proofs.items() if proof is not None]

        def more(value: dict[str, Any]) -> bool:
            return proofs.keys() >= value.keys() >= needed and all(
                proof.holds(value[name]) for name, proof in asked if name in value
            )

        return RoundTripCheck(frozenset({dict}), more)

    def _of_container(self, schema: Schema, held: bool) -> RoundTripCheck | None:
        if held and not schema.keys() <= _FREE:
            return NEVER
        cls: Any = _TYPES[schema["type"]]
        if cls is dict:
            keys = self.of(schema["keys_schema"], held=held)
            values = self.of(schema["values_schema"], held=held)
            return dict_of(keys, values) if held or keys or values else None
        items = schema["items_schema"]
        variadic = "variadic_item_index" in schema
        if cls is not tuple or (len(items) == 1 and variadic):
            proof = self.of(items if isinstance(items, Mapping) else items[0], held=held)
            return array_of(cls, proof) if held or proof else None
        proofs = [self.of(item, held=held) for item in items]
        if not held and not any(proofs):
            return None
        return NEVER if variadic else items_of(cls, proofs)

    def _of_function(self, schema: Schema) -> RoundTripCheck:
        """Of a value that the user's function leaves as it is, the next time too."""
        function, inner = schema["function"]["function"], self._held(schema["schema"])
        more = inner.more

        def unchanged(value: Any) -> bool:
            made = function(value)
            same = made is value or (type(made) is type(value) is str and made == value)
            return same and (more is None or more(value))

        return RoundTripCheck(inner.types, unchanged)

    def _of_leaf(self, schema: Schema, held: bool) -> RoundTripCheck | None:
        kind = schema["type"]
        cls = _TYPES.get(kind)
        if cls is None:
            return NEVER if held else None
        if kind in ("datetime", "time"):
            proof = moments(cls)
        else:
            proof = RoundTripCheck(frozenset({cls}), self._more_of(schema, held))
        if not held:
            return proof if kind in ("float", "datetime", "time") else None
        return proof if schema.keys() <= _FREE else _within(schema, proof)

    def _more_of(self, schema: Schema, held: bool) -> Look | None:
        match schema["type"]:
            case "decimal":
                return Decimal.is_finite
            case "float" if self._finite and (held or schema.get("allow_inf_nan")):
                return math.isfinite
            case _:
                return None


def _within(schema: Schema, proof: RoundTripCheck) -> RoundTripCheck:
    """It had to be in bounds when it was validated, and need not be now."""
    fits, more = SchemaValidator(cast("Any", schema)).isinstance_python, proof.more
    if more is None:
        return RoundTripCheck(proof.types, fits)
    return RoundTripCheck(proof.types, lambda value: more(value) and fits(value))


def _text_beside(kind: str) -> RoundTripCheck:
    """Of text that is not read as what a union prefers to text."""
    text = frozenset({str})
    match kind:
        case "uuid":
            return RoundTripCheck(text, lambda value: len(value) < _SHORTEST_UUID)
        case "date" | "time" | "datetime":
            return RoundTripCheck(text, lambda value: value[:1].isalpha())
        case "timedelta":
            return RoundTripCheck(text, lambda value: not any(map(str.isdigit, value)))
        case _:
            return RoundTripCheck(text, lambda _: False)


def is_suspect(text: str) -> bool:
    """Whether JSON text has what may not come back, whatever the types say."""
    if not text.isascii() and _REPLACED in text:
        return True
    for at in range(_DIGITS, len(text), _DIGITS):
        begin = end = at
        while text[begin - 1 : begin].isdigit():
            begin -= 1
        while text[end : end + 1].isdigit():
            end += 1
        if end - begin > _DIGITS:
            return True
    return False


def may_be_infinite(text: bytes) -> bool:
    """Whether JSON text of pydantic may have a float that is none of JSON."""
    return (
        (b"u" in text and b"null" in text)
        or (b"N" in text and b"NaN" in text)
        or (b"I" in text and b"Infinity" in text)
    )
