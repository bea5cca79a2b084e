"""Import of optional libraries."""

from __future__ import annotations

import importlib
from typing import Any

from chancy.errors import ConfigurationError

#: The extra that installs all of them.
EXTRA = "chancy-queue[codecs]"


def imported(module: str, *, what: str) -> Any:
    """Import a module of an optional library.

    :param what: the feature that needs it, for the error.
    :raises ConfigurationError: the library is missing; the message states how to install it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        library = module.partition(".")[0]
        raise ConfigurationError(
            f"{what} needs the library {library}, which is not installed ({error}): "
            f"pip install '{EXTRA}'"
        ) from None
