"""What stands in a job's arguments for the results of other steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from chancy.errors import PushError
from chancy.job.definition import Job
from chancy.text import shown

#: Keys and indexes that one path may have.
MAX_PATH = 32


class _Whole:
    """Stands for a value that is not there yet, so it has no text."""

    __slots__ = ()

    def __format__(self, spec: str) -> str:
        raise PushError(
            f"{self!r} in a text: it stands for a whole argument, as what the step gives is not "
            "known yet: give it a parameter of its own"
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
    """A list of results: of these steps, of those whose names begin so, or of all steps before."""

    steps: tuple[str, ...]
    prefix: str | None
    path: tuple[str | int, ...]

    def __repr__(self) -> str:
        parts = [*map(repr, self.steps)]
        parts += [] if self.prefix is None else [f"prefix={self.prefix!r}"]
        parts += [f"path={self.path!r}"] if self.path else []
        return f"Each({', '.join(parts)})"


#: What an argument may be instead of a value.
Source = One | Many


def From(step: str | None = None, /, *path: str | int) -> Any:  # noqa: N802  it stands for a value
    """As an argument: what another step returns. The step waits for that one.

    Type checkers take it for whatever the parameter is; the annotations of both functions are held
    against each other when the workflow is pushed.

    :param step: the name of the step; without it, the only one before.
    :param path: keys and indexes into its result. What is not there when the step starts is left
        out of the call, which then fails unless the parameter has a default.
    :raises PushError: the name or the path cannot be one.
    """
    if step is not None and not isinstance(step, str):
        raise PushError(f"From({shown(step)}): pass the name of a step")
    return One(step, _path(path))


def Each(*steps: str, prefix: str | None = None, path: tuple[str | int, ...] = ()) -> Any:  # noqa: N802
    """As an argument: the list of what several steps return.

    :param steps: their names, in the order of the list; without any, all steps before this one in
        the order of ``after``. The step waits for them.
    :param prefix: instead of names, all steps whose names begin so, in the order in which they were
        added, also those that are added while the workflow runs. The step does not wait for them by
        this: say so by ``after``.
    :param path: keys and indexes into each.
    :raises PushError: both names and a prefix were given, or something cannot be what it should be.
    """
    if steps and prefix is not None:
        raise PushError("Each takes names of steps or a prefix, not both")
    for name in steps:
        if not isinstance(name, str):
            raise PushError(f"Each({shown(name)}): pass names of steps")
    if prefix is not None and not (isinstance(prefix, str) and prefix):
        raise PushError(f"Each(prefix={shown(prefix)}): pass how the names of the steps begin")
    return Many(steps, prefix, _path(tuple(path)))


def _path(path: tuple[object, ...]) -> tuple[str | int, ...]:
    if len(path) > MAX_PATH:
        raise PushError(f"a path into a result has {len(path)} parts: {MAX_PATH} may be")
    found: list[str | int] = []
    for part in path:
        if isinstance(part, bool) or not isinstance(part, str | int):
            raise PushError(f"{shown(part)} in a path into a result is neither a key nor an index")
        if isinstance(part, str) and "\x00" in part:
            raise PushError(f"{shown(part)} in a path into a result has a NUL character")
        found.append(part)
    return tuple(found)


#: Values of an argument that are looked at for what hides in it.
_SOME = 10_000
#: Of most jobs.
NO_SOURCES: Mapping[str, Source] = MappingProxyType({})


def sources_of(job: Job[Any]) -> Mapping[str, Source]:
    """The arguments of a job that stand for results, by parameter."""
    for value in job.arguments.values():
        if type(value) is One or type(value) is Many:
            break
    else:
        return NO_SOURCES
    return {name: value for name, value in job.arguments.items() if isinstance(value, One | Many)}


def named(sources: Mapping[str, Source]) -> Iterator[str]:
    """The steps that they name."""
    for source in sources.values():
        match source:
            case One(step=str(step)):
                yield step
            case One():
                pass
            case Many(steps=steps):
                yield from steps


def inside(value: object) -> Source | None:
    """A source that is within a list or an object, which stays one; the first of some."""
    left = [value] if not isinstance(value, One | Many) else []
    for one in left:
        if isinstance(one, One | Many):
            return one
        if isinstance(one, dict):
            left += one.values()
        elif isinstance(one, list | tuple | set | frozenset):
            left += one
        if len(left) > _SOME:
            break
    return None
