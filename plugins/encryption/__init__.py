"""Encryption: stores arguments, results and errors of jobs encrypted."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from chancy.checks import check_flag, check_instances
from chancy.errors import ConfigurationError, InvalidArguments
from chancy.plugin.patterns import check_pattern, matches
from chancy.plugin.payloads import Payload, PayloadCodec
from chancy.plugin.plugin import Plugin
from chancy.plugins.encryption.keyring import VARIABLE, Keyring, new_key
from chancy.serialization.sealed import MARK, opened

if TYPE_CHECKING:
    import click

__all__ = ["VARIABLE", "Encryption", "new_key"]

#: The maximum functions whose choice is cached.
_MAX_CACHED = 10_000


class Encryption(Plugin):
    """Encrypts stored data of jobs with `Fernet <https://cryptography.io/en/latest/fernet/>`_.

    Every application that pushes such jobs, runs them or reads their results needs the plugin and
    the keys. Needs the extra ``encryption``.

    :param keys: Fernet keys by id, or a list of ``"ID:KEY"``. The first key encrypts, all keys
        decrypt. None: from the environment variable ``CHANCY_ENCRYPTION_KEYS``, ``ID:KEY``
        separated by commas. Ids are stored unencrypted.
    :param functions: paths or patterns of functions, such as ``shop.jobs.*``; None: all.
    :param results: also encrypt results, and the values of steps.
    :param errors: also encrypt the messages, traces, notes and causes of errors. Their types stay
        readable, for retries and for groups of dead letters.
    :param logs: also encrypt the lines that the plugin ``JobLogs`` stores.
    :raises ConfigurationError: a setting is invalid, or cryptography is not installed.
    """

    def __init__(
        self,
        keys: Mapping[str, str] | Sequence[str] | None = None,
        *,
        functions: Sequence[str] | None = None,
        results: bool = True,
        errors: bool = True,
        logs: bool = True,
    ) -> None:
        self.keyring = Keyring(keys)
        self.results = check_flag(results, "results")
        self.errors = check_flag(errors, "errors")
        self.logs = check_flag(logs, "logs")
        self.functions = functions
        if functions is not None:
            patterns = check_instances(functions, str, "functions", "pass a list of patterns")
            if not patterns:
                raise ConfigurationError(
                    "functions=[] would encrypt nothing: pass patterns of functions, or leave the "
                    "parameter out to encrypt the arguments of all"
                )
            for pattern in patterns:
                check_pattern(pattern, "functions")
            self.functions = tuple(patterns)

    @classmethod
    def get_identifier(cls) -> str:
        return "chancy.encryption"

    def __repr__(self) -> str:
        return f"Encryption(keys={list(self.keyring.ids)}, functions={self.functions})"

    def codec(self) -> PayloadCodec | None:
        return _FernetCodec(self)

    def commands(self) -> Sequence[click.Command]:
        from chancy.plugins.encryption.commands import commands_of

        return (commands_of(self.keyring),)


class _FernetCodec:
    """Implements `PayloadCodec`."""

    def __init__(self, settings: Encryption) -> None:
        self._keyring = settings.keyring
        self._patterns = settings.functions
        self._chooses = lru_cache(maxsize=_MAX_CACHED)(self._matches)
        self._left = {
            payload
            for payload, wanted in (
                (Payload.RESULT, settings.results),
                (Payload.CHECKPOINTS, settings.results),
                (Payload.FAILURE, settings.errors),
                (Payload.LOG, settings.logs),
            )
            if not wanted
        }

    def encode(self, func: str, payload: Payload, text: str) -> str:
        if self._patterns is None or self._chooses(func):
            return text if payload in self._left else self._keyring.encrypt(text)
        if payload is Payload.ARGUMENTS and MARK in text:
            _check_plain(func, json.loads(text))
        return text

    def decode(self, func: str, payload: Payload, text: str) -> str:
        value = json.loads(text)
        what = (
            f"{func or 'a job'}: the {payload.value} {'is' if payload is Payload.RESULT else 'are'}"
        )
        found = opened(value)
        if found is not None:
            key, data, rest = found
            plain = self._keyring.decrypt(key, data, what)
            if not rest:
                return plain
            value = {**json.loads(plain), **self._items(rest, what)}
        elif payload is Payload.ARGUMENTS and isinstance(value, dict):
            value = self._items(value, what)
        return json.dumps(value)

    def _matches(self, func: str) -> bool:
        return any(matches(pattern, func) for pattern in self._patterns or ())

    def _items(self, arguments: dict[str, Any], what: str) -> dict[str, Any]:
        """Arguments whose values may be encrypted results of steps, or lists of such results."""
        return {
            name: [self._item(one, what) for one in value]
            if isinstance(value, list)
            else self._item(value, what)
            for name, value in arguments.items()
        }

    def _item(self, value: Any, what: str) -> Any:
        found = opened(value)
        if found is None or found[2]:
            return value
        return json.loads(self._keyring.decrypt(found[0], found[1], what))


def _check_plain(func: str, arguments: Any) -> None:
    """Refuse plain arguments that a worker would mistake for encrypted ones."""
    for name, value in arguments.items() if isinstance(arguments, dict) else ():
        for one in value if isinstance(value, list) else [value]:
            if opened(one) is not None:
                raise InvalidArguments(
                    f"{func}: the argument {name!r} has the form of an encrypted value, which is "
                    "reserved"
                )
