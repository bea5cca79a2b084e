"""Settings from keyword arguments and the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from chancy.checks import reasons
from chancy.errors import ConfigurationError

M = TypeVar("M", bound=BaseModel)


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
