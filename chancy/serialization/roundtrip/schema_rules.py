"""Which types come back from JSON as they went: judged by the schemas of pydantic-core.

What is known to come back is written without a further look. All else is read back and compared
before it is written, which takes as long again: see `chancy.serialization.validation`.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

_LEAVES = frozenset(
    {
        "none", "bool", "int", "float", "str", "bytes", "decimal", "uuid",
        "date", "time", "datetime", "timedelta",
    }
)  # fmt: skip
#: Keys of objects are text in JSON; these come back from it.
_KEYS = _LEAVES - {"none"}
#: What each type is in JSON, for those that a union may have beside each other.
_JSON = {
    "none": "null", "bool": "bool", "int": "number", "float": "number",
    **dict.fromkeys(_LEAVES - {"none", "bool", "int", "float"}, "text"),
    **dict.fromkeys(("list", "tuple", "set", "frozenset", "named-tuple"), "array"),
    **dict.fromkeys(("dict", "model", "dataclass", "typed-dict"), "object"),
}  # fmt: skip
#: The types that kinds of schemas stand for, as far as one could be taken for another.
_NAMED: Mapping[str, type] = {
    "bool": bool, "int": int, "float": float, "str": str, "bytes": bytes,
    "list": list, "tuple": tuple, "set": set, "frozenset": frozenset, "deque": deque,
    "dict": dict, "typed-dict": dict, "counter": Counter, "ordered-dict": OrderedDict,
}  # fmt: skip
#: Rules by which text is changed when it is checked.
_RULES = frozenset({"strip_whitespace", "to_lower", "to_upper"})
#: What a function that is asked before sees in JSON as in Python.
_SAME_IN_JSON = frozenset({"none", "bool", "int", "float", "str"})
#: What changes a value on its way, or leaves it out.
_CHANGED = _RULES | {
    "serialization", "serialization_exclude", "serialization_exclude_if", "init_only",
}  # fmt: skip
#: Schemas of a user's own functions.
_ALTERING = frozenset(
    {"function-before", "function-after", "function-wrap", "function-plain", "chain", "custom"}
)
#: How bytes are written, and how they are read.
_BYTES = frozenset({"ser_json_bytes", "val_json_bytes"})
#: Configurations that change values, by how they begin.
_CHANGING = ("ser_json", "val_json", "val_temporal", "str_", "validate_by_alias")
_CHANGED_OBJECTS = frozenset({"post_init", "custom_init", "computed_fields", "extras_schema"})
#: Schemas of parts, and of containers: where their parts are.
_PARTS = {
    "nullable": "schema", "default": "schema", "model": "schema", "dataclass": "schema",
    "list": "items_schema", "set": "items_schema", "frozenset": "items_schema",
    "tuple": "items_schema", "model-fields": "fields", "dataclass-args": "fields",
    "typed-dict": "fields", "named-tuple": "fields", "model-field": "schema",
    "dataclass-field": "schema", "typed-dict-field": "schema", "named-tuple-field": "schema",
}  # fmt: skip

_OBJECTS = frozenset({"model", "dataclass"})

Schema = Mapping[str, Any]


class SchemaRules:
    """Judges the parts of one schema.

    :param definitions: the schemas that others refer to.
    """

    def __init__(self, definitions: Iterable[Schema] = ()) -> None:
        self._definitions = {definition["ref"]: definition for definition in definitions}
        self._open: set[str] = set()

    def exact(self, schema: Schema) -> bool:
        """Whether every value that fits comes back from JSON equal, and of its type."""
        kind = schema["type"]
        if not _CHANGED.isdisjoint(schema) or not _keeps_objects(schema):
            return False
        match kind:
            case "definition-ref":
                return self._referred(schema["schema_ref"])
            case "enum":
                return all(type(member.value) in (int, str) for member in schema["members"])
            case "literal":
                return all(_is_plain(value) for value in schema["expected"])
            case "dict":
                return self._has_text_keys(schema) and self._all_exact(schema, "values_schema")
            case "union":
                return self._is_told_apart(members(schema))
            case "tagged-union":
                return all(self.exact(choice) for choice in members(schema))
            case "function-after" | "function-before":
                return self._is_repeatable(schema)
            case _:
                if kind in _LEAVES:
                    return True
                return kind in _PARTS and self._all_exact(schema, _PARTS[kind])

    def _referred(self, ref: str) -> bool:
        if ref in self._open:
            return True  # it is being judged
        self._open.add(ref)
        try:
            return ref in self._definitions and self.exact(self._definitions[ref])
        finally:
            self._open.remove(ref)

    def _all_exact(self, schema: Schema, where: str) -> bool:
        parts = schema.get(where)
        match parts:
            case None:
                return False
            case {"type": str()}:
                return self.exact(parts)
            case Mapping():
                return all(self.exact(part) for part in parts.values())
            case _:
                return all(self.exact(part) for part in parts)

    def _has_text_keys(self, schema: Schema) -> bool:
        keys = schema.get("keys_schema", {"type": "any"})
        match keys:
            case {"type": "enum", "members": members}:
                return all(type(member.value) is str for member in members)
            case {"type": "literal", "expected": expected}:
                return all(type(value) is str for value in expected)
            case _:
                return keys["type"] in _KEYS and self.exact(keys)

    def _is_told_apart(self, choices: Sequence[Schema]) -> bool:
        """Whether the members of a union are of different types in JSON, but for text last."""
        kinds = [_JSON.get(one["type"]) for one in choices]
        alike = len(kinds) - len(set(kinds)) - (preferred(choices) is not None)
        return None not in kinds and not alike and all(self.exact(one) for one in choices)

    def _is_repeatable(self, schema: Schema) -> bool:
        """Whether a function of the user's is given the same when it is read, and nothing else.

        One that is asked before sees what JSON has. One that is given an object may change it.
        """
        inner = schema["schema"]
        before = schema["type"] == "function-before"
        known = _SAME_IN_JSON if before else _LEAVES
        alone = schema["function"]["type"] == "no-info"
        return alone and inner["type"] in known and self.exact(inner)


def members(union: Schema) -> Sequence[Schema]:
    """The choices of a union, tagged or not, in their order."""
    choices = union["choices"]
    if isinstance(choices, Mapping):
        return list(choices.values())
    return [one[0] if isinstance(one, tuple) else one for one in choices]


def preferred(choices: Sequence[Schema]) -> str | None:
    """The kind that is text in JSON and goes before plain text in a union, if there is one.

    pydantic reads text as the first of them that it fits.
    """
    texts = [one["type"] for one in choices if _JSON.get(one["type"]) == "text"]
    match texts:
        case [kind, "str"] if kind != "str":
            return str(kind)
        case _:
            return None


def mentions(schema: object, *kinds: str) -> bool:
    """Whether there is a part of one of these kinds in a schema."""
    return _has_part(schema, lambda part: part["type"] in kinds, frozenset())


def named_types(schema: object) -> frozenset[type]:
    """The types that a schema names. Where anything may stand, arrays and objects are JSON's."""
    found = frozenset(_named_types(schema))
    return found - {list, tuple, dict} if mentions(schema, "any") else found


def _named_types(schema: object) -> Iterator[type]:
    match schema:
        case Mapping():
            kind = schema.get("type")
            if type(kind) is str and kind in _NAMED:
                yield _NAMED[kind]
            # Of a TypedDict nothing can be an instance: it is a dict.
            if isinstance(cls := schema.get("cls"), type) and kind != "typed-dict":
                yield cls
            yield from map(type, schema.get("expected", ()))
            for key, part in schema.items():
                if key != "metadata":
                    yield from _named_types(part)
        case list() | tuple():
            for part in schema:
                yield from _named_types(part)
        case _:
            pass


def alters(schema: object) -> bool:
    """Whether what comes of a value is up to functions and rules of the user's.

    Those of what an object holds were asked when it was made.
    """

    def wanted(part: Schema) -> bool:
        return part["type"] in _ALTERING or not _RULES.isdisjoint(part)

    return _has_part(schema, wanted, _OBJECTS)


def _has_part(schema: object, wanted: Callable[[Schema], bool], closed: frozenset[str]) -> bool:
    """:param closed: kinds whose parts do not count."""
    match schema:
        case Mapping():
            kind = schema.get("type")
            if type(kind) is str and (kind in closed or wanted(schema)):
                return kind not in closed
            parts = [part for key, part in schema.items() if key != "metadata"]
            return any(_has_part(part, wanted, closed) for part in parts)
        case list() | tuple():
            return any(_has_part(part, wanted, closed) for part in schema)
        case _:
            return False


def _is_plain(value: object) -> bool:
    return value is None or type(value) in (bool, int, str)


def _keeps_objects(schema: Schema) -> bool:
    """Whether an object is stored with all that it has, under names that are read again."""
    if schema.get("init") is False:
        return False
    if any(schema.get(key) for key in _CHANGED_OBJECTS):
        return False
    config = schema.get("config") or {}
    if any(key.startswith(_CHANGING) for key in config.keys() - _BYTES):
        return False
    if len({config.get(key) for key in _BYTES}) > 1:
        return False
    if "allow" in (schema.get("extra_behavior"), config.get("extra_fields_behavior")):
        return False
    return bool(schema.get("validation_alias") == schema.get("serialization_alias"))
