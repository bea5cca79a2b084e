"""The keys of an application, which encrypt and decrypt JSON text. Keys are never shown."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from chancy.errors import ConfigurationError, UnreadablePayload
from chancy.serialization.sealed import sealed
from chancy.text import shown

if TYPE_CHECKING:
    from cryptography.fernet import Fernet

#: The environment variable with keys, ``ID:KEY``, separated by commas.
VARIABLE = "CHANCY_ENCRYPTION_KEYS"
#: The maximum number of keys of an application.
MAX_KEYS = 100
_ID = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class Keyring:
    """Keys by id. The first key encrypts; all keys decrypt.

    :param keys: keys by id, or ``ID:KEY`` each; None: those of the environment variable.
    :raises ConfigurationError: there are no keys, or one of them is invalid; the error shows no
        key.
    """

    def __init__(self, keys: Mapping[str, str] | Iterable[str] | None) -> None:
        if keys is None:
            pairs = _pairs(filter(None, os.environ.get(VARIABLE, "").split(",")), VARIABLE)
        elif isinstance(keys, Mapping):
            pairs = list(keys.items())
        elif isinstance(keys, str):
            raise ConfigurationError("encryption: keys must be a dict, or a list of 'ID:KEY'")
        else:
            pairs = _pairs(keys, "keys")
        if not 1 <= len(pairs) <= MAX_KEYS:
            raise ConfigurationError(
                f"encryption: there are {len(pairs)} keys: pass 1 to {MAX_KEYS} as keys=, or set "
                f"{VARIABLE}; chancy.plugins.encryption.new_key() makes one"
            )
        self._fernets: dict[str, Fernet] = {}
        for id, key in pairs:
            if not isinstance(id, str) or not _ID.fullmatch(id):
                raise ConfigurationError(
                    "encryption: the id of a key must have 1 to 64 of the characters "
                    "A-Z a-z 0-9 _ . -"
                )
            if id in self._fernets:
                raise ConfigurationError(f"encryption: two keys have the id {id!r}")
            self._fernets[id] = _fernet(id, key)
        #: The id of the key that encrypts.
        self.current = next(iter(self._fernets))
        self._encrypt = self._fernets[self.current].encrypt

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of all keys; the first one encrypts."""
        return tuple(self._fernets)

    def __repr__(self) -> str:
        return f"Keyring({', '.join(self.ids)})"

    def encrypt(self, text: str) -> str:
        """Encrypt JSON text with the first key, and return JSON text."""
        return json.dumps(
            sealed(self.current, self._encrypt(text.encode()).decode()), separators=(",", ":")
        )

    def decrypt(self, key: str, data: str, what: str) -> str:
        """Decrypt a ciphertext, and return its text.

        :param what: for errors, for example ``shop.jobs.send: the arguments are``.
        :raises UnreadablePayload: the key is not among these keys, or does not fit.
        """
        fernet = self._fernets.get(key)
        if fernet is None:
            known = ", ".join(map(repr, self.ids))
            raise UnreadablePayload(
                f"{what} encrypted with the key {shown(key)}, which this application does not "
                f"have; it has {known}: add the key. Jobs that failed for it can be replayed"
            )
        from cryptography.fernet import InvalidToken

        try:
            return fernet.decrypt(data).decode()
        except (InvalidToken, ValueError):
            raise UnreadablePayload(
                f"{what} encrypted with the key {key!r}, and cannot be decrypted: another key has "
                "this id here, or the stored value was changed"
            ) from None


def new_key() -> str:
    """A new key."""
    return _fernet_type().generate_key().decode()


def _pairs(items: Iterable[object], where: str) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    for number, item in enumerate(items, 1):
        id, colon, key = item.strip().partition(":") if isinstance(item, str) else ("", "", "")
        if not colon:
            raise ConfigurationError(f"encryption: {where}: number {number} is not 'ID:KEY'")
        pairs.append((id, key))
    return pairs


def _fernet(id: str, key: object) -> Fernet:
    fernet = _fernet_type()
    try:
        if isinstance(key, str | bytes):
            return fernet(key)
    except ValueError:
        pass
    raise ConfigurationError(
        f"encryption: the key {id!r} is not a Fernet key, 32 bytes in url-safe base64: "
        "chancy.plugins.encryption.new_key() makes one"
    ) from None


def _fernet_type() -> type[Fernet]:
    try:
        from cryptography.fernet import Fernet
    except ImportError:
        raise ConfigurationError(
            "encryption: cryptography is not installed: pip install 'chancy-queue[encryption]'"
        ) from None
    return Fernet
