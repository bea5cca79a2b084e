"""Placeholders in a job's arguments for the results of other steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from chancy.errors import PushError
from chancy.job.definition import Job
from chancy.text import shown

#: The maximum number of keys and indexes of a path.
MAX_PATH = 32


class _Whole:
    """A placeholder for a value that does not exist yet, so it cannot be formatted as a string."""

    __slots__ = ()

    def __format__(self, spec: str) -> str:
        raise PushError(
            f"{self!r} in a string: it stands for a whole argument, as the step's result does not "
            "exist yet: pass it as a parameter of its own"
        )


@dataclass(frozen=True, slots=True, repr=False)
class One(_Whole):
    """The result of one step, or a part of it; without a name, of the only step before."""

    step: str | None
    path: tuple[str | int, ...]

    def __repr__(self) -> str:
        parts = [] if self.step is None else [self.step]
        return f"From({', '.join(map(repr, [*parts, *self.path]))})"


@dataclass(frozen=True, slots=True, repr=False)
class Many(_Whole):
    """A list of results: of named steps, of steps with a name prefix, or of all steps before."""

    steps: tuple[str, ...]
    prefix: str | None
    path: tuple[str | int, ...]
    dynamic: bool = False

    def __repr__(self) -> str:
        parts = [*map(repr, self.steps)]
        parts += [] if self.prefix is None else [f"prefix={self.prefix!r}"]
        parts += [f"path={self.path!r}"] if self.path else []
        parts += ["dynamic=True"] if self.dynamic else []
        return f"Each({', '.join(parts)})"


#: The placeholder of an argument.
Source = One | Many


def From(step: str | None = None, /, *path: str | int) -> Any:  # noqa: N802  used as a value
    """Use the result of another step as an argument. The step waits for that one.

    For type checkers it fits any parameter; the push checks the annotations of both functions
    against each other.

    :param step: the name of the step; default: the only step before this one.
    :param path: keys and indexes into its result. If the part is missing when the step starts, the
        argument is left out, and the call fails unless the parameter has a default.
    :raises PushError: the name or the path is invalid.
    """
    if step is not None and not isinstance(step, str):
        raise PushError(f"From({shown(step)}): pass the name of a step")
    return One(step, _path(path))


def Each(  # noqa: N802  used as a value
    *steps: str,
    prefix: str | None = None,
    path: tuple[str | int, ...] = (),
    dynamic: bool = False,
) -> Any:
    """Use the list of the results of several steps as an argument.

    :param steps: their names, in the order of the list; default: all steps before this one, in the
        order of ``after``. The step waits for them.
    :param prefix: instead of names: all other steps whose names begin with it, in the order in
        which they were added, including steps added while the workflow runs. The step waits for
        those in the description.
    :param path: keys and indexes into each result.
    :param dynamic: no step in the description needs to match the prefix, because steps are added
        while the workflow runs, with this step in ``before``.
    :raises PushError: both names and a prefix are given, or a value is invalid.
    """
    if steps and prefix is not None:
        raise PushError("Each takes names of steps or a prefix, not both")
    for name in steps:
        if not isinstance(name, str):
            raise PushError(f"Each({shown(name)}): pass names of steps")
    if prefix is not None and not (isinstance(prefix, str) and prefix):
        raise PushError(f"Each(prefix={shown(prefix)}): pass a non-empty prefix of step names")
    if not isinstance(dynamic, bool) or (dynamic and prefix is None):
        raise PushError(f"Each(dynamic={shown(dynamic)}): pass True or False, with a prefix")
    return Many(steps, prefix, _path(tuple(path)), dynamic)


def _path(path: tuple[object, ...]) -> tuple[str | int, ...]:
    if len(path) > MAX_PATH:
        raise PushError(f"a path into a result has {len(path)} parts; the limit is {MAX_PATH}")
    found: list[str | int] = []
    for part in path:
        if isinstance(part, bool) or not isinstance(part, str | int):
            raise PushError(f"{shown(part)} in a path into a result is neither a key nor an index")
        if isinstance(part, str) and "\x00" in part:
            raise PushError(f"{shown(part)} in a path into a result has a NUL character")
        found.append(part)
    return tuple(found)


#: The maximum number of values inside one argument that are searched for placeholders.
_MAX_SEARCHED = 10_000
#: The placeholders of most jobs.
NO_SOURCES: Mapping[str, Source] = MappingProxyType({})


def sources_of(job: Job[Any]) -> Mapping[str, Source]:
    """The placeholders among a job's arguments, by parameter."""
    for value in job.arguments.values():
        if type(value) is One or type(value) is Many:
            break
    else:
        return NO_SOURCES
    return {name: value for name, value in job.arguments.items() if isinstance(value, One | Many)}


def step_names(sources: Mapping[str, Source]) -> Iterator[str]:
    """The names of steps in placeholders."""
    for source in sources.values():
        match source:
            case One(step=str(step)):
                yield step
            case One():
                pass
            case Many(steps=steps):
                yield from steps


def prefixes(sources: Mapping[str, Source]) -> Iterator[str]:
    """The prefixes of names of steps in placeholders."""
    for source in sources.values():
        if isinstance(source, Many) and source.prefix is not None:
            yield source.prefix


def inside(value: object) -> Source | None:
    """The first placeholder nested in a list or a mapping, where it is not replaced by a result."""
    left = [value] if not isinstance(value, One | Many) else []
    for item in left:
        if isinstance(item, One | Many):
            return item
        if isinstance(item, dict):
            left += item.values()
        elif isinstance(item, list | tuple | set | frozenset):
            left += item
        if len(left) > _MAX_SEARCHED:
            break
    return None
