"""Settings from keyword arguments and the environment."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from chancy.checks import reasons
from chancy.errors import ConfigurationError
from chancy.text import shown

M = TypeVar("M", bound=BaseModel)

#: The name of an application: it begins the keys in Redis, and is the name of a queue.
_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,63}")


def prefix_of(name: str) -> str:
    """The prefix of the keys of an application.

    :raises ConfigurationError: the name is not valid.
    """
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"App({shown(name)}): a name has 1 to 63 of the characters A-Z a-z 0-9 _ . : / -"
        )
    return f"{name}:"


def settings_of(kind: type[M], library: str, arguments: Mapping[str, Any]) -> M:
    """Settings from keyword arguments, with defaults from variables such as ``FENNEL_DSN``.

    :raises ConfigurationError: a setting is invalid or unknown.
    """
    found = {
        name: os.environ[variable]
        for name in kind.model_fields
        if (variable := f"{library}_{name}".upper()) in os.environ
    }
    try:
        return kind.model_validate(found | dict(arguments))
    except ValidationError as error:
        raise ConfigurationError(f"the settings of {library}: {reasons(error)}") from None
