"""Conversion of a function's arguments and result between Python values and stored JSON.

Stored arguments are a JSON object by name; a stored result is a JSON value. A later format will be
marked by an object with the key `FORMAT`, which is reserved for it.
"""

from __future__ import annotations

import contextlib
import json
import sys
import weakref
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

from chancy.errors import (
    InvalidArguments,
    InvalidResult,
    PayloadTooLarge,
    UnknownVersion,
    UnreadablePayload,
)
from chancy.fork_lock import ForkLock
from chancy.serialization import codec
from chancy.serialization.annotations import ANYTHING, Annotations
from chancy.serialization.codec import DEFAULT_MAX_PAYLOAD
from chancy.serialization.sealed import FORMAT, UNKNOWN_FORMAT, key_of, without_key
from chancy.serialization.versions import ATTRIBUTE, ArgumentsVersion, later_version

if TYPE_CHECKING:
    from chancy.serialization.validation import Validator

#: The name of the result among annotations.
_RESULT = "return"

_lock = ForkLock()


class _Kinds(dict[str, frozenset[type]]):
    """The types that fit each parameter unchanged; other names get the types of ``**kwargs``."""

    def __init__(self, annotations: Annotations) -> None:
        super().__init__((one.name, one.kinds) for one in annotations.parameters)
        self._rest = annotations.rest.kinds if annotations.rest is not None else frozenset()

    def __missing__(self, name: str) -> frozenset[type]:
        return self._rest


class Signature:
    """Encodes and decodes the arguments and result of one function; created by `Signature.of`.

    pydantic validates the values against the annotations. Parameters without an annotation, or
    annotated as a plain number, string, list or dict, do not need it.

    :param path: the function's path, for errors.
    """

    __slots__ = (
        "_annotations", "_arguments", "_checked", "_kinds", "_open", "_result", "_result_kinds",
        "_simple", "_what", "_what_result", "none_fits", "path",
    )  # fmt: skip

    def __init__(self, annotations: Annotations, path: str) -> None:
        self.path = path
        self._annotations = annotations
        self._what = f"the arguments of {path}"
        self._what_result = f"the result of {path}"
        self._kinds = _Kinds(annotations)
        rest = annotations.rest
        every = [*annotations.parameters, *([] if rest is None else [rest])]
        #: Whether any parameter has an annotation.
        self._checked = not all(one.free for one in every)
        #: Whether `FORMAT` among the arguments is not found by other checks.
        self._open = rest is not None or not self._checked
        self._simple = all(one.kinds for one in every if one is not rest)
        self._result_kinds = annotations.result.kinds
        #: Whether the annotation allows the result None.
        self.none_fits = type(None) in self._result_kinds
        self._arguments: Validator | None = None
        self._result: Validator | None = None

    @classmethod
    def of(cls, function: Callable[..., Any], path: str) -> Signature:
        """Return the signature of a function, created once."""
        version: ArgumentsVersion | None = getattr(function, ATTRIBUTE, None)
        try:
            found = _made.get(function)
        except TypeError:  # not hashable, or without weak references
            found = None
        if found is None or found.path != path:
            said = Annotations.of(function)
            found = cls(said, path) if version is None else _VersionedSignature(said, path, version)
            with contextlib.suppress(TypeError):
                _made[function] = found
        return found

    @property
    def parameter_names(self) -> list[str]:
        """The names of the parameters, without ``**kwargs``."""
        return [one.name for one in self._annotations.parameters]

    def takes(self, name: str) -> bool:
        """Whether an argument may have this name."""
        return self._annotations.rest is not None or name in self.parameter_names

    def without(self, names: Collection[str]) -> Signature:
        """Return the signature of the same function without some of its parameters."""
        return Signature(self._annotations.without(names), self.path)

    def of_item(self) -> Signature:
        """Return the signature for the result of one item of a batch function."""
        return Signature(self._annotations.of_item(), self.path)

    def encode(self, arguments: Mapping[str, Any], limit: int = DEFAULT_MAX_PAYLOAD) -> str:
        """Return arguments as a JSON string.

        :param limit: the largest size, in bytes of UTF-8.
        :raises InvalidArguments: they do not fit; names the function, the parameter, the reason.
        :raises PayloadTooLarge: the JSON is over the limit.
        """
        if self._open and FORMAT in arguments:
            raise InvalidArguments(f"{self.path}: the argument name {FORMAT!r} is reserved")
        if type(arguments) is dict and not (self._simple and self._fit(arguments)):
            validator = self._arguments or self._argument_validator()
            return validator.encode(arguments, self._what, limit)
        return codec.encode(arguments, what=self._what, limit=limit, named=True)

    def _fit(self, arguments: dict[str, Any]) -> bool:
        """Whether the type of each value is one that fits without validation."""
        if self._checked:
            kinds = self._kinds
            for name, value in arguments.items():
                if type(value) not in kinds[name]:
                    return False
        return True

    def decode(self, text: str | None) -> dict[str, Any]:
        """Decode stored arguments; None stands for none.

        :raises InvalidArguments: they do not fit the current function.
        :raises UnknownVersion: they have a version that this process does not know.
        :raises UnreadablePayload: they are encrypted.
        """
        if not text or text == "{}":
            return {}
        if not self._simple:
            return self._decode(text)
        arguments = codec.decode(text)
        if type(arguments) is not dict:
            raise InvalidArguments(
                f"the stored arguments are {type(arguments).__name__}, not an object: jobs are "
                "called with keyword arguments"
            )
        if not self._fit(arguments):
            return self._decode(text)
        if self._open and FORMAT in arguments:
            raise self._unreadable(arguments)
        return arguments

    def decode_given(self, text: str) -> dict[str, Any]:
        """`decode` for JSON that a caller passes: without a version, it has the current one."""
        return self.decode(text)

    def upgraded(self, text: str) -> str:
        """Stored arguments as they would be stored now: in the current version.

        :raises Exception: whatever the function's upgrade raises; see `decode` for others.
        """
        return text

    def _decode(self, text: str) -> dict[str, Any]:
        validator = self._arguments or self._argument_validator()
        try:
            arguments = validator.decode(text)
        except InvalidArguments:
            if f'"{FORMAT}"' not in text:
                raise
            stored = codec.decode(text)
            if type(stored) is not dict or FORMAT not in stored:
                raise
            arguments = stored
        if FORMAT in arguments:
            raise self._unreadable(arguments)
        return arguments

    def _unreadable(
        self, arguments: dict[str, Any]
    ) -> InvalidArguments | UnknownVersion | UnreadablePayload:
        """The error for stored arguments of a version, or in a format, that is not known here."""
        if (key := key_of(arguments)) is not None:
            return UnreadablePayload(f"{self.path}: {without_key('arguments are', key)}")
        if (version := later_version(arguments)) is not None:
            return UnknownVersion(
                f"{self.path}: the arguments have version {version}, and this process knows 1"
            )
        return InvalidArguments(f"{self.path}: {self._later('stored JSON')}")

    def check_result(self) -> None:
        """Raise `InvalidResult` if pydantic does not support the annotation of the result."""
        if not self._result_kinds:
            self._result_validator()
        if self._result is not None and (why := self._result.useless.get(_RESULT)):
            raise InvalidResult(f"{self.path}: the result: {why}")

    def encode_result(self, value: object, limit: int = DEFAULT_MAX_PAYLOAD) -> str:
        """Return a result as a JSON string.

        :raises InvalidResult: it does not fit the annotation, or JSON cannot hold it.
        :raises PayloadTooLarge: the JSON is over the limit.
        """
        try:
            if type(value) is dict and FORMAT in value:
                raise InvalidArguments(f"{self._what_result}: the key {FORMAT!r} is reserved")
            kinds = self._result_kinds
            if kinds is ANYTHING or type(value) in kinds:
                return self._plain_result(value, limit)
            return self._encode_result(value, limit)
        except PayloadTooLarge:
            raise
        except InvalidArguments as error:
            raise InvalidResult(str(error)) from error.__cause__

    def _plain_result(self, value: object, limit: int) -> str:
        """Encode by the rules of JSON alone, with numbers as keys: the job has already run."""
        return codec.encode(value, what=self._what_result, limit=limit, any_keys=True)

    def _encode_result(self, value: object, limit: int) -> str:
        validator = self._result or self._result_validator()
        if validator.useless:
            return self._plain_result(value, limit)
        whole = validator.encode({_RESULT: value}, self._what_result, sys.maxsize)
        text = whole[len(_RESULT) + 4 : -1]
        codec.check_size(len(text.encode()), what=self._what_result, limit=limit)
        return text

    def read_result(self, value: Any) -> Any:
        """The result from a decoded JSON value, such as `QueuedJob.result`.

        :raises InvalidResult: it does not fit the current annotation.
        :raises UnreadablePayload: it is encrypted.
        """
        if type(value) is dict and FORMAT in value:
            if (key := key_of(value)) is not None:
                raise UnreadablePayload(f"{self.path}: {without_key('result is', key)}")
            raise InvalidResult(f"{self.path}: {self._later('stored result')}")
        if type(value) in self._result_kinds:
            return value
        validator = self._result or self._result_validator()
        if validator.useless:
            return value
        try:
            return validator.decode(json.dumps({_RESULT: value}))[_RESULT]
        except InvalidArguments as error:
            raise InvalidResult(str(error)) from error.__cause__

    def _argument_validator(self) -> Validator:
        from chancy.serialization.validation import Validator

        with _lock:
            if self._arguments is None:
                said = self._annotations
                self._arguments = Validator(
                    self.path, said.parameters, said.rest, "parameter {!r}".format
                )
            return self._arguments

    def _result_validator(self) -> Validator:
        from chancy.serialization.validation import Validator

        with _lock:
            if self._result is None:
                made = Validator(
                    self.path, [self._annotations.result], None, lambda _: "the result"
                )
                if made.useless:  # the job has already run: only the rules of JSON apply
                    self._result_kinds = ANYTHING
                self._result = made
            return self._result

    def _later(self, what: str) -> str:
        return f"the {what} {UNKNOWN_FORMAT}"


class _VersionedSignature(Signature):
    """A signature whose arguments are stored with a version."""

    __slots__ = ("_version",)

    def __init__(self, annotations: Annotations, path: str, version: ArgumentsVersion) -> None:
        super().__init__(annotations, path)
        self._version = version

    def without(self, names: Collection[str]) -> Signature:
        left = self._annotations.without(names)
        return _VersionedSignature(left, self.path, self._version)

    def encode(self, arguments: Mapping[str, Any], limit: int = DEFAULT_MAX_PAYLOAD) -> str:
        text = self._version.mark(super().encode(arguments, limit))
        codec.check_size(len(text.encode()), what=self._what, limit=limit)
        return text

    def decode(self, text: str | None) -> dict[str, Any]:
        return super().decode(self._version.upgraded(text or "{}", self.path))

    def decode_given(self, text: str) -> dict[str, Any]:
        return super().decode(text)

    def upgraded(self, text: str) -> str:
        return self._version.mark(self._version.upgraded(text, self.path))


_made: weakref.WeakKeyDictionary[Callable[..., Any], Signature] = weakref.WeakKeyDictionary()
