"""Read-only models over the tables of chancy, for the admin and for queries of your own.

Unmanaged: no migration of Django touches these tables.
"""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import models

from chancy.django.settings import read
from chancy.errors import ChancyError
from chancy.postgres.statements import quoted
from chancy.states import State


def _table(name: str) -> str:
    """A table in the schema of the settings. A system check reports invalid settings."""
    try:
        schema = quoted(read().tables)
    except ChancyError:
        schema = '"chancy"'
    # Django does not quote a quoted name again.
    return f'{schema}."{name}"'


_STATES = [(int(state), state.label) for state in State]


class _Row(models.Model):
    """A row of a table of chancy."""

    objects: ClassVar[Any]
    _meta: ClassVar[Any]

    class Meta:
        abstract = True


class _StoredJob(_Row):
    """The columns of unfinished and finished jobs."""

    id: Any = models.UUIDField(primary_key=True)
    func: Any = models.TextField("function")
    queue: Any = models.TextField()
    state: Any = models.SmallIntegerField(choices=_STATES)
    priority: Any = models.SmallIntegerField()
    attempt: Any = models.IntegerField()
    max_attempts: Any = models.IntegerField()
    crashes: Any = models.SmallIntegerField()
    run_at: Any = models.DateTimeField(null=True)
    pushed_at: Any = models.DateTimeField()
    claimed_at: Any = models.DateTimeField(null=True)
    stop_asked_at: Any = models.DateTimeField(null=True)
    worker_id: Any = models.UUIDField(null=True)
    arguments: Any = models.JSONField(null=True)
    meta: Any = models.JSONField(null=True)
    limits: Any = models.JSONField(null=True)
    errors: Any = models.JSONField(null=True)

    class Meta(_Row.Meta):
        abstract = True

    def __str__(self) -> str:
        return f"{self.func} {self.id}"


class UnfinishedJob(_StoredJob):
    """A job that is not finished."""

    expires_at: Any = models.DateTimeField(null=True)

    class Meta(_StoredJob.Meta):
        managed = False
        db_table = _table("jobs")
        verbose_name = "job"


class FinishedJob(_StoredJob):
    """A job that is finished."""

    result: Any = models.JSONField(null=True)
    finished_at: Any = models.DateTimeField()

    class Meta(_StoredJob.Meta):
        managed = False
        db_table = _table("finished_jobs")
        verbose_name = "finished job"


class DeclaredQueue(_Row):
    """A queue."""

    name: Any = models.TextField(primary_key=True)
    executor: Any = models.TextField()
    concurrency: Any = models.IntegerField(null=True)
    keep_finished: Any = models.BooleanField()
    paused_at: Any = models.DateTimeField(null=True)
    resume_at: Any = models.DateTimeField(null=True)
    limits: Any = models.JSONField(null=True)
    options: Any = models.JSONField(null=True)
    rules: Any = models.JSONField(null=True)
    broker: Any = models.TextField()
    declared_at: Any = models.DateTimeField()
    updated_at: Any = models.DateTimeField()

    class Meta(_Row.Meta):
        managed = False
        db_table = _table("queues")
        verbose_name = "queue"

    def __str__(self) -> str:
        return str(self.name)


class FiledLetter(_Row):
    """A job that failed for good; see the plugin for dead letters."""

    id: Any = models.UUIDField(primary_key=True)
    func: Any = models.TextField("function")
    queue: Any = models.TextField()
    reason: Any = models.TextField()
    error: Any = models.TextField(null=True)
    attempt: Any = models.IntegerField()
    crashes: Any = models.SmallIntegerField()
    died_at: Any = models.DateTimeField()
    pushed_at: Any = models.DateTimeField()
    replayed_at: Any = models.DateTimeField(null=True)
    replayed_as: Any = models.UUIDField(null=True)
    replays: Any = models.IntegerField()
    host: Any = models.TextField(null=True)
    arguments: Any = models.JSONField(null=True)
    meta: Any = models.JSONField(null=True)
    errors: Any = models.JSONField(null=True)

    class Meta(_Row.Meta):
        managed = False
        db_table = _table("dead_letters")
        verbose_name = "dead letter"

    def __str__(self) -> str:
        return f"{self.func} {self.id}"
