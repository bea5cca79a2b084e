"""The registry of functions that a worker may run.

Anyone with write access to the table can write a row. A row can only name a function that this
process has registered, or that its allow-list permits it to import.
"""

from __future__ import annotations

import fnmatch
import importlib
from collections.abc import Callable, Iterable
from typing import Any

from chancy.checks import check_function_path, check_instances
from chancy.errors import PushError, UnknownFunction
from chancy.job.definition import DECORATED
from chancy.serialization.signature import Signature
from chancy.text import shown


class Registry:
    """Finds functions by their path.

    :param allow: patterns of paths (``fnmatch``: ``shop.jobs.*``) that may be imported without
        being registered. A function must be defined in the module that its path names.
    """

    def __init__(self, allow: Iterable[str] = ()) -> None:
        self.allow = check_instances(allow, str, "allow", "pass patterns such as 'shop.jobs.*'")
        #: The path of a function that wraps each function that a worker runs, for example to close
        #: database connections: it takes the function and returns another one. Executor processes
        #: import it before any job. Set it before a worker starts.
        self.wrapper: str | None = None
        self._found: dict[str, Callable[..., Any]] = {}
        self._wrapped: dict[Callable[..., Any], Callable[..., Any]] = {}

    def find(self, path: str) -> Callable[..., Any]:
        """Return the function with the path that a row names, wrapped by `wrapper`.

        :raises UnknownFunction: it is neither registered nor allowed, or does not exist.
        """
        function = self._find(path)
        if self.wrapper is None:
            return function
        wrapped = self._wrapped.get(function)
        if wrapped is None:
            wrapped = self._wrapped[function] = self.load_wrapper()(function)
        return wrapped

    def load_wrapper(self) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Import the `wrapper`."""
        module, _, name = (self.wrapper or "").rpartition(".")
        found: Callable[[Callable[..., Any]], Callable[..., Any]]
        found = getattr(importlib.import_module(module), name)
        return found

    def _find(self, path: str) -> Callable[..., Any]:
        function = self._found.get(path) or DECORATED.get(path)
        if function is not None:
            return function
        self.check_allowed(path)
        return self._import(path)

    def check_allowed(self, path: str) -> None:
        """Raise `UnknownFunction` unless a function that is not registered may be imported."""
        if not any(fnmatch.fnmatchcase(path, pattern) for pattern in self.allow):
            raise UnknownFunction(
                f"no job is registered as {shown(path)}, and allow={list(self.allow)} does not "
                "match it: import its module in the worker's application, or add it to allow"
            )

    def check(self, path: str) -> None:
        """Raise `PushError` unless this process can import the function it is about to push."""
        check_function_path(path)
        if path in DECORATED or path in self._found:
            return
        try:
            self._import(path)
        except UnknownFunction as error:
            raise PushError(
                f"{error}; to push a job for another codebase, pass validate=False (--no-validate)"
            ) from error.__cause__

    def known(self, path: str) -> Signature | None:
        """Return the signature of a function that is already loaded, or None; imports nothing."""
        function = self._found.get(path) or DECORATED.get(path)
        return None if function is None else Signature.of(function, path)

    def signature(self, path: str) -> Signature:
        """Return the signature of a function that is about to be pushed; raises like `check`."""
        self.check(path)
        return Signature.of(self._found.get(path) or DECORATED[path], path)

    def _import(self, path: str) -> Callable[..., Any]:
        module_name, _, name = path.rpartition(".")
        if not module_name:
            raise UnknownFunction(f"{shown(path)} has no module: write package.module.function")
        try:
            # Also waits for an import in another thread.
            module = importlib.import_module(module_name)
        except (Exception, SystemExit) as error:  # a module may exit when it is imported
            # The path of a static method names a class, whose module has been imported on the way.
            if path in DECORATED:
                return DECORATED[path]
            raise UnknownFunction(
                f"the module of {shown(path)} cannot be imported: {type(error).__name__}: {error}"
            ) from error
        function: Callable[..., Any] | None = vars(module).get(name)
        if function is None or not callable(function):
            raise UnknownFunction(f"module {module_name} has no function {name!r}")
        if getattr(function, "__module__", None) != module_name:
            raise UnknownFunction(
                f"{shown(path)} is defined in {getattr(function, '__module__', None)!r}: use the "
                "path of the module that defines it"
            )
        self._found[path] = function
        return function
