"""Libraries that not every application needs."""

from __future__ import annotations

import importlib
from typing import Any

from chancy.errors import ConfigurationError

#: What installs them all.
EXTRA = "chancy[codecs]"


def imported(module: str, *, what: str) -> Any:
    """A module of a library that may be missing.

    :param what: needs it; how an error names it.
    :raises ConfigurationError: it is missing; the message names what installs it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        library = module.partition(".")[0]
        raise ConfigurationError(
            f"{what} needs the library {library}, which is not installed ({error}): "
            f"pip install '{EXTRA}'"
        ) from None
