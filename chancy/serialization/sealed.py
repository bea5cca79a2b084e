"""The formats of encoded JSON values. An encrypted one is an object with the id of a key and a
ciphertext."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

#: The reserved key that marks a format other than plain JSON. It is not a valid parameter name.
FORMAT = "$chancy"
#: A part of every JSON text that has an encrypted value, and of few others.
MARK = f'"{FORMAT}"'


def sealed(key: str, data: str) -> dict[str, Any]:
    """The JSON value for a ciphertext.

    :param key: the id of the key, which is not secret.
    """
    return {FORMAT: {"encrypted": key, "data": data}}


#: The end of the error for a value whose format is not known here.
UNKNOWN_FORMAT = (
    "has a format of a later version of chancy, or of a plugin that this application does not "
    "have: upgrade this process, or pass the plugin that decodes it"
)


def marked(value: Any) -> bool:
    """Whether a value has another format than plain JSON, such as that of a plugin's codec."""
    return isinstance(value, Mapping) and FORMAT in value


def opened(value: Any) -> tuple[str, str, dict[str, Any]] | None:
    """The id of the key of an encrypted value, the ciphertext, and the values added beside them.

    None for any other value.
    """
    if not marked(value):
        return None
    match value[FORMAT]:
        case {"encrypted": str(key), "data": str(data), **more} if not more:
            return key, data, {name: item for name, item in value.items() if name != FORMAT}
        case _:
            return None


def key_of(value: Any) -> str | None:
    """The id of the key with which a value is encrypted; None if it is not encrypted."""
    found = opened(value)
    return None if found is None else found[0]


def stored_json(text: str) -> Any:
    """The encoded value that a text column holds; None for any other text."""
    if not text.startswith(f"{{{MARK}"):
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if marked(value) else None


def redaction(key: str) -> str:
    """The text that is shown in place of a ciphertext."""
    return f"encrypted (key {key})"


def without_key(what: str, key: str) -> str:
    """The message of the error for a payload that no plugin of the application decrypts.

    :param what: for example ``arguments are``.
    """
    return (
        f"the {what} encrypted with the key {key!r}, and no plugin of this application decrypts "
        "them: pass it the plugin that has the key"
    )


def redacted(value: Any) -> Any:
    """A JSON value with every encrypted value in it replaced by its `redaction`."""
    if isinstance(value, Mapping):
        found = opened(value)
        if found is None:
            return {name: redacted(item) for name, item in value.items()}
        key, _, rest = found
        return {FORMAT: redaction(key), **redacted(rest)} if rest else redaction(key)
    if isinstance(value, list | tuple):
        return [redacted(item) for item in value]
    return value
