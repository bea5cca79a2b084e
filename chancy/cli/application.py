"""Finding the application that somebody names, or making one of settings."""

from __future__ import annotations

import importlib
import inspect
import os
import traceback
from types import ModuleType

from chancy.app import default_plugins as composition
from chancy.app.app import Chancy
from chancy.cli.settings import Settings
from chancy.errors import ChancyError, ConfigurationError
from chancy.text import shown


def find(path: str) -> Chancy:
    """The Chancy at ``package.module:attribute``; the attribute is ``chancy`` unless given.

    The attribute may be a function without parameters that returns one, or what has one as its
    ``chancy``: an application of another library.
    :raises ConfigurationError: what is wrong with the path, or with the module.
    """
    name, _, attribute = path.partition(":")
    if name.endswith(".py") or "/" in name:
        raise ConfigurationError(
            f"--app {path}: this is a file; name the module, for example "
            f"{name.removesuffix('.py').strip('./').replace('/', '.')}:{attribute or 'chancy'}"
        )
    found: object = load(name, what=f"--app {path}")
    for part in (attribute or "chancy").split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise ConfigurationError(
                f"--app {path}: module {name} has no {attribute or 'chancy'!r}{_candidates(name)}"
            ) from None
    if not isinstance(found, Chancy) and isinstance(has := getattr(found, "chancy", None), Chancy):
        found = has
    if callable(found) and not isinstance(found, Chancy | type):
        try:
            inspect.signature(found).bind()
        except TypeError as error:
            raise ConfigurationError(
                f"--app {path} is a function that cannot be called without arguments ({error}): "
                f"a Chancy is needed, or a function that returns one{_candidates(name)}"
            ) from None
        try:
            found = found()
        except ChancyError:
            raise
        except Exception as error:
            raise ConfigurationError(
                f"--app {path}: calling it raised {type(error).__name__}: {error}\n{_trace(error)}"
            ) from error
    if not isinstance(found, Chancy):
        raise ConfigurationError(
            f"--app {path} is {shown(found)}: a Chancy is needed, or a function that returns one"
            f"{_candidates(name)}"
        )
    return found


def make(settings: Settings, *, dsn: str | None = None) -> Chancy:
    """An application of settings alone.

    :param dsn: where the settings have none.
    """
    dsn = settings.dsn or dsn
    if not dsn:
        raise ConfigurationError(
            "there is no database: give --dsn, CHANCY_DSN, or dsn in [tool.chancy] of "
            "pyproject.toml; or --app for an application that knows it"
        )
    return Chancy(
        dsn,
        schema=settings.schema_name or "chancy",
        listen_dsn=settings.listen_dsn,
        driver=settings.driver or "asyncpg",
        allow=settings.allow,
        plugins=[
            composition.make(name, values, source="[tool.chancy.plugins]")
            for name, values in settings.plugins.items()
        ],
    )


def load(name: str, *, what: str) -> ModuleType:
    """Import a module of the user's, or say why that does not work."""
    try:
        return importlib.import_module(name)
    except ChancyError:
        raise
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if name == missing or name.startswith(f"{missing}."):
            raise ConfigurationError(
                f"{what}: there is no module {missing!r}; the current directory "
                f"({os.getcwd()}) was looked in, and where Python looks"
            ) from None
        # What a module says of itself, if it says what to install, is worth more.
        said = str(error)
        if said == f"No module named {missing!r}":
            said = f"there is no module {missing!r}"
        raise ConfigurationError(
            f"{what}: importing {name} failed: {said}\n{_trace(error)}"
        ) from error
    except Exception as error:
        raise ConfigurationError(
            f"{what}: importing {name} failed: {type(error).__name__}: {error}\n{_trace(error)}"
        ) from error


def _candidates(name: str) -> str:
    """The applications that a module does have, for an error message."""
    module = importlib.import_module(name)
    found = sorted(key for key, value in vars(module).items() if isinstance(value, Chancy))
    return f"; try {', '.join(f'{name}:{key}' for key in found)}" if found else ""


def _trace(error: BaseException) -> str:
    """The frames of the user's own code: ours and the import machinery say nothing new."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "importlib" not in frame.filename and frame.filename != __file__
    ]
    return "".join(traceback.format_list(frames)).rstrip()
