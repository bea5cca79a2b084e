"""The order of steps. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from chancy.errors import PushError

#: Steps of a cycle that an error names.
_TOLD = 10


def order(before: Mapping[str, Sequence[str]], where: str) -> dict[str, list[str]]:
    """Whom each step lets go on, of whom each waits for; names that are no steps are left out.

    :param where: how an error names the workflow.
    :raises PushError: steps wait for each other in a circle; names them.
    """
    behind: dict[str, list[str]] = {name: [] for name in before}
    missing = dict.fromkeys(before, 0)
    for name, those in before.items():
        for one in those:
            if one in behind:
                behind[one].append(name)
                missing[name] += 1
    free = [name for name, count in missing.items() if not count]
    for name in free:
        for one in behind[name]:
            missing[one] -= 1
            if not missing[one]:
                free.append(one)
    if len(free) < len(before):
        circle = _circle(before, {name for name, count in missing.items() if count})
        raise PushError(
            f"{where}: steps wait for each other in a circle: {' after '.join(map(repr, circle))}"
        )
    return behind


def _circle(before: Mapping[str, Sequence[str]], stuck: set[str]) -> list[str]:
    """A circle among steps of which each waits for one of them."""
    path: dict[str, None] = {}
    name = min(stuck)
    while name not in path:
        path[name] = None
        name = next(one for one in before[name] if one in stuck)
    circle = [*path][[*path].index(name) :]
    shown = circle if len(circle) <= _TOLD else [*circle[:_TOLD], "…"]
    return [*shown, name]
