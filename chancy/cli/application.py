"""Imports the application that ``--app`` names, or makes one from settings."""

from __future__ import annotations

import importlib
import inspect
import os
import traceback
from collections.abc import Callable
from types import ModuleType

from chancy.app import default_plugins
from chancy.app.app import Chancy
from chancy.cli.settings import Settings
from chancy.errors import ChancyError, ConfigurationError
from chancy.job.definition import JobFactory
from chancy.log_context import keeping_loggers
from chancy.text import shown


@keeping_loggers()
def find(path: str) -> Chancy:
    """Import the Chancy at ``package.module:attribute``; the default attribute is ``chancy``.

    The attribute may also be a function without parameters that returns a Chancy, or an object
    with a Chancy as its ``chancy``, such as an application of another library. An object that is
    both is called, so that it can import what it serves first.

    :raises ConfigurationError: the path or the module is wrong.
    """
    name, _, attribute = path.partition(":")
    if name.endswith(".py") or "/" in name:
        raise ConfigurationError(
            f"--app {path}: this is a file; pass the module, for example "
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
    if isinstance(getattr(found, "job", None), JobFactory):
        raise ConfigurationError(
            f"--app {path} is a job: pass a Chancy, or a function that returns one"
            f"{_candidates(name)}"
        )
    inner = getattr(found, "chancy", None)
    if callable(found) and not isinstance(found, Chancy | type):
        try:
            inspect.signature(found).bind()
        except TypeError as error:
            if not isinstance(inner, Chancy):
                raise ConfigurationError(
                    f"--app {path} is a function that cannot be called without arguments "
                    f"({error}): pass a Chancy, or a function that returns one{_candidates(name)}"
                ) from None
            found = inner
        else:
            found = _called(found, path)
    elif not isinstance(found, Chancy) and isinstance(inner, Chancy):
        found = inner
    if not isinstance(found, Chancy):
        raise ConfigurationError(
            f"--app {path} is {shown(found)}: pass a Chancy, or a function that returns one"
            f"{_candidates(name)}"
        )
    found.import_path = f"{name}:{attribute or 'chancy'}"
    return found


def _called(function: Callable[[], object], path: str) -> object:
    try:
        return function()
    except ChancyError:
        raise
    except Exception as error:
        raise ConfigurationError(
            f"--app {path}: calling it raised {type(error).__name__}: {error}\n{_trace(error)}"
        ) from error


def make(settings: Settings, *, dsn: str | None = None) -> Chancy:
    """Make an application from settings alone.

    :param dsn: used if the settings have none.
    """
    dsn = settings.dsn or dsn
    if not dsn:
        raise ConfigurationError(
            "no database is configured: pass --dsn, set CHANCY_DSN, or dsn in [tool.chancy] of "
            "pyproject.toml; or pass --app for an application that has a DSN"
        )
    return Chancy(
        dsn,
        schema=settings.schema_name or "chancy",
        listen_dsn=settings.listen_dsn,
        driver=settings.driver or "asyncpg",
        allow=settings.allow,
        plugins=[
            default_plugins.make(name, values, source="[tool.chancy.plugins]")
            for name, values in settings.plugins.items()
        ],
    )


@keeping_loggers()
def load(name: str, *, what: str) -> ModuleType:
    """Import a user's module.

    :param what: the setting that names it, for errors.
    :raises ConfigurationError: the import failed.
    """
    try:
        return importlib.import_module(name)
    except ChancyError:
        raise
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if name == missing or name.startswith(f"{missing}."):
            raise ConfigurationError(
                f"{what}: there is no module {missing!r} in the current directory "
                f"({os.getcwd()}) or on Python's path"
            ) from None
        # A message of the module's own, such as one with the package to install, is kept.
        reason = str(error)
        if reason == f"No module named {missing!r}":
            reason = f"there is no module {missing!r}"
        raise ConfigurationError(
            f"{what}: importing {name} failed: {reason}\n{_trace(error)}"
        ) from error
    except Exception as error:
        raise ConfigurationError(
            f"{what}: importing {name} failed: {type(error).__name__}: {error}\n{_trace(error)}"
        ) from error


def _candidates(name: str) -> str:
    """The applications that a module has, as a hint for an error message."""
    module = importlib.import_module(name)
    found = sorted(key for key, value in vars(module).items() if isinstance(value, Chancy))
    return f"; try {', '.join(f'{name}:{key}' for key in found)}" if found else ""


def _trace(error: BaseException) -> str:
    """The traceback without the frames of this module and of the import machinery."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "importlib" not in frame.filename and frame.filename != __file__
    ]
    return "".join(traceback.format_list(frames)).rstrip()
