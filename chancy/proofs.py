"""Which values of exact types come back from JSON for certain, by a look at what they hold.

To read a value back and compare takes as long as to write it; a look at its types takes a tenth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from types import NoneType
from typing import Any, cast
from uuid import UUID

from pydantic_core import SchemaValidator

from chancy.exactness import Schema
from chancy.sameness import whole_minutes

#: True: the value comes back. False: it has to be read back to know.
Proof = Callable[[Any], bool]

#: The type of what was validated.
_TYPES: Mapping[str, type] = {
    "none": NoneType, "bool": bool, "int": int, "float": float, "str": str, "bytes": bytes,
    "decimal": Decimal, "uuid": UUID, "date": date, "time": time, "datetime": datetime,
    "timedelta": timedelta, "list": list, "set": set, "frozenset": frozenset, "tuple": tuple,
    "dict": dict, "typed-dict": dict,
}  # fmt: skip
#: What else must be true of values of a type.
_MORE: Mapping[str, Proof] = {
    "decimal": Decimal.is_finite,
    "datetime": whole_minutes,
    "time": whole_minutes,
}
#: The keys of schemas that restrict no value of the type.
_FREE = frozenset(
    {
        "type", "metadata", "ref", "strict", "microseconds_precision", "fields", "cls", "cls_name",
        "items_schema", "keys_schema", "values_schema", "variadic_item_index", "config",
        "computed_fields", "extra_behavior", "total",
    }
)  # fmt: skip


#: What pydantic writes in keys for half of a surrogate pair.
_REPLACED = "\N{REPLACEMENT CHARACTER}"
#: Digits of the longest number that Python and pydantic read.
_DIGITS = 4300


class _Types(frozenset[type]):
    """Proves all values of these very types. In a loop it is asked as a set."""

    def __call__(self, value: Any) -> bool:
        return type(value) in self


def never(value: Any) -> bool:
    """The proof of what always has to be read back."""
    return False


class Proofs:
    """Makes the proofs of exact schemas.

    Values that were validated strictly need none, but for ints that become floats and moments
    with seconds in their offset. Objects need it of all that they hold: it was validated when
    they were made, if then, and may be of subclasses, of which JSON keeps what the class has.
    """

    def __init__(self, definitions: Iterable[Schema] = ()) -> None:
        self._definitions = {definition["ref"]: definition for definition in definitions}
        self._made: dict[tuple[str, bool], Proof | None] = {}

    def of(self, schema: Schema, *, held: bool = False) -> Proof | None:
        """The proof of an exact schema; None if its values need none.

        :param held: whether an object holds them.
        """
        match schema["type"]:
            case "definition-ref":
                return self._of_reference(schema["schema_ref"], held)
            case "nullable":
                return _or_none(self.of(schema["schema"], held=held))
            case "default" | "model-field" | "dataclass-field" | "typed-dict-field":
                return self.of(schema["schema"], held=held)
            case "model" | "dataclass":
                return self._of_object(schema)
            case "union":
                choices = schema["choices"]
                return self._of_union([c[0] if isinstance(c, tuple) else c for c in choices], held)
            case "tagged-union":
                return self._of_union(schema["choices"].values(), held)
            case "literal":
                return _one_of(schema["expected"]) if held else None
            case "enum":
                return _Types({schema["cls"]}) if held else None
            case "named-tuple":
                return self._of_named_tuple(schema)
            case "typed-dict":
                return self._of_typed_dict(schema, held)
            case "dict":
                return self._of_dict(schema, held)
            case "list" | "set" | "frozenset" | "tuple":
                return self._of_array(schema, held)
            case _:
                return _of_leaf(schema, held)

    def _of_reference(self, ref: str, held: bool) -> Proof | None:
        key = ref, held
        if key not in self._made:
            # Those that refer to themselves find out when they are asked.
            self._made[key] = lambda value: (made := self._made[key]) is None or made(value)
            self._made[key] = self.of(self._definitions[ref], held=held)
        return self._made[key]

    def _of_object(self, schema: Schema) -> Proof:
        cls, fields = schema["cls"], schema["schema"].get("fields")
        if fields is None:  # a model of one value without a name
            return never
        parts = fields.items() if isinstance(fields, Mapping) else [(f["name"], f) for f in fields]
        proofs = {name: self.of(part, held=True) for name, part in parts}
        easy = [(name, proof) for name, proof in proofs.items() if isinstance(proof, _Types)]
        others = [
            (name, proof)
            for name, proof in proofs.items()
            if proof is not None and not isinstance(proof, _Types)
        ]
        slotted = bool(schema.get("slots"))

        def prove(value: Any) -> bool:
            if type(value) is not cls:
                return False
            try:
                values = {n: getattr(value, n) for n in proofs} if slotted else value.__dict__
                for name, types in easy:
                    if type(values[name]) not in types:
                        return False
                for name, proof in others:
                    if not proof(values[name]):
                        return False
            except (AttributeError, KeyError, RecursionError):  # it lacks a field, or is too deep
                return False
            return True

        return prove

    def _of_union(self, choices: Iterable[Schema], held: bool) -> Proof | None:
        members = [
            self._definitions[c["schema_ref"]] if c["type"] == "definition-ref" else c
            for c in choices
        ]
        if not held and all(self.of(member) is None for member in members):
            return None
        proofs: dict[type, Proof] = {}
        for member in members:
            kind = _TYPES.get(member["type"]) or member.get("cls")
            proof = self.of(member, held=True)
            if kind is None or kind in proofs or proof is None:
                return never
            proofs[kind] = proof
        return lambda value: (proof := proofs.get(type(value))) is not None and proof(value)

    def _of_named_tuple(self, schema: Schema) -> Proof:
        cls = schema["cls"]
        proofs = [self.of(part["schema"], held=True) or never for part in schema["fields"]]
        return lambda value: (
            type(value) is cls and all(prove(item) for prove, item in zip(proofs, value))  # noqa: B905  they are as many
        )

    def _of_typed_dict(self, schema: Schema, held: bool) -> Proof:
        """Keys that are not its own may be left out, whatever is held."""
        proofs = {name: self.of(part, held=held) for name, part in schema["fields"].items()}
        needed = {name for name, part in schema["fields"].items() if part.get("required", True)}
        asked = [(name, proof) for name, proof in proofs.items() if proof is not None]
        return lambda value: (
            type(value) is dict
            and proofs.keys() >= value.keys() >= needed
            and all(proof(value[name]) for name, proof in asked if name in value)
        )

    def _of_dict(self, schema: Schema, held: bool) -> Proof | None:
        keys = _every(self.of(schema["keys_schema"], held=held))
        values = _every(self.of(schema["values_schema"], held=held))
        if held and not schema.keys() <= _FREE:
            return never
        if not held and keys is None and values is None:
            return None
        return lambda value: (
            type(value) is dict
            and (keys is None or keys(value))
            and (values is None or values(value.values()))
        )

    def _of_array(self, schema: Schema, held: bool) -> Proof | None:
        cls: Any = _TYPES[schema["type"]]
        items = schema["items_schema"]
        if held and not schema.keys() <= _FREE:
            return never
        if schema["type"] != "tuple" or (len(items) == 1 and "variadic_item_index" in schema):
            item = items if isinstance(items, Mapping) else items[0]
            every = _every(self.of(item, held=held))
            if every is None:
                return _Types({cls}) if held else None
            return lambda value: type(value) is cls and every(value)
        proofs = [self.of(item, held=held) for item in items]
        if not held and not any(proofs):
            return None
        if "variadic_item_index" in schema:
            return never
        return lambda value: (
            type(value) is cls
            and len(value) == len(proofs)
            and all(proof is None or proof(item) for proof, item in zip(proofs, value, strict=True))
        )


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


def _of_leaf(schema: Schema, held: bool) -> Proof | None:
    kind = schema["type"]
    more = _MORE.get(kind)
    if not held:
        if kind == "float":
            return _Types({float})
        return more if kind in ("datetime", "time") else None
    cls = _TYPES.get(kind)
    if cls is None:
        return never
    if schema.keys() <= _FREE:
        if more is None:
            return _Types({cls})
        return lambda value: type(value) is cls and more(value)
    # It had to be in bounds when it was validated, and need not be now.
    bounds = SchemaValidator(cast("Any", schema))
    return lambda value: (
        type(value) is cls and (more is None or more(value)) and bounds.isinstance_python(value)
    )


def _or_none(proof: Proof | None) -> Proof | None:
    if isinstance(proof, _Types):
        return _Types({*proof, NoneType})
    return None if proof is None else lambda value: value is None or proof(value)


def _one_of(expected: Iterable[Any]) -> Proof:
    known = {(type(value), value) for value in expected}
    return lambda value: value.__hash__ is not None and (type(value), value) in known


def _every(proof: Proof | None) -> Callable[[Iterable[Any]], bool] | None:
    """The proof of all values."""
    if isinstance(proof, _Types):
        return lambda values: proof.issuperset(map(type, values))  # 0.02 µs each
    return None if proof is None else lambda values: all(map(proof, values))
