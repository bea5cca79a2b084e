"""`Finding`, one line in the report of a check: the result, its severity, and the action."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, NamedTuple


class Severity(StrEnum):
    """The severity of a finding, worst first."""

    #: Jobs do not run, or are about to be lost.
    ERROR = "error"
    #: A problem if it continues.
    WARNING = "warning"
    #: The check failed to run.
    UNKNOWN = "unknown"
    OK = "ok"


class Finding(NamedTuple):
    """One line of a report.

    :param about: the name of the check.
    :param found: its result, with the values.
    :param todo: the action to take, if possible one command or statement; empty if none is needed.
    :param grade: the severity, if there is something to do.
    """

    about: str
    found: str
    todo: str = ""
    grade: Severity = Severity.WARNING

    @property
    def severity(self) -> Severity:
        return self.grade if self.todo else Severity.OK

    @property
    def ok(self) -> bool:
        return not self.todo

    def as_json(self) -> dict[str, Any]:
        return {
            "about": self.about,
            "severity": self.severity.value,
            "ok": self.ok,
            "found": self.found,
            "todo": self.todo,
        }
