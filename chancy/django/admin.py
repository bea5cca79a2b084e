"""The admin of jobs, queues and dead letters: lists, search, and actions.

Each page reads a bounded number of rows within a bounded time, also with millions of jobs.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from importlib import import_module
from typing import Any
from uuid import UUID

from django.contrib import messages
from django.core.paginator import Paginator
from django.db import OperationalError, connections
from django.db.transaction import Atomic
from django.http import HttpResponseRedirect
from django.utils.functional import cached_property

from chancy.broker.values import Cancellation
from chancy.django.connection_broker import ConnectionBroker
from chancy.django.current import app, calls
from chancy.django.models import DeclaredQueue, FiledLetter, FinishedJob, UnfinishedJob
from chancy.django.settings import read
from chancy.errors import ChancyError
from chancy.plugins.dashboard.redaction import MASKED, Masked
from chancy.plugins.dead_letter.letter import LetterFilter
from chancy.plugins.dead_letter.replaying import ReplayOptions, Walk
from chancy.plugins.dead_letter.store import Letters

# Untyped: the types that checkers infer from Django's code contradict its documentation.
admin: Any = import_module("django.contrib.admin")
format_html: Any = import_module("django.utils.html").format_html

#: Rows that a list counts and pages through, and that an action takes.
MAX_ROWS, MAX_SELECTED = 10_000, 1_000
#: Queues that the filter lists.
MAX_QUEUES = 200
#: Milliseconds after which the search of a page is given up.
TIMEOUT_MS = 5_000
#: Characters of a JSON value that a page shows.
MAX_JSON = 100_000

_LARGE = ("arguments", "meta", "errors", "result", "limits")


class BoundedPaginator(Paginator):
    """Counts up to `MAX_ROWS` rows: a table of millions would take seconds."""

    @cached_property
    def count(self) -> int:
        """The number of rows, at most `MAX_ROWS`."""
        rows: Any = self.object_list
        return int(rows.order_by()[:MAX_ROWS].count())


class QueueFilter(admin.SimpleListFilter):
    """Filters by queue. Lists declared queues: the queues of the jobs would need a scan."""

    title = "queue"
    parameter_name = "queue"

    def lookups(self, request: Any, model_admin: Any) -> list[tuple[str, str]]:
        rows = DeclaredQueue.objects.using(read().database).order_by("name")
        names = list(rows.values_list("name", flat=True)[:MAX_QUEUES])
        if (chosen := self.value()) and chosen not in names:
            names.append(chosen)
        return [(name, name) for name in names]

    def queryset(self, request: Any, queryset: Any) -> Any:
        return queryset.filter(queue=self.value()) if self.value() else queryset


def _tree(name: str) -> Any:
    """A method of an admin that shows a value of a row as a tree, masked as in the dashboard."""

    @admin.display(description=name)
    def shown(_: Any, row: Any) -> str:
        return _shown(getattr(row, name))

    return shown


class _TableAdmin(admin.ModelAdmin):
    """Shows a table. Actions change it, for users with the model's change permission."""

    paginator = BoundedPaginator
    show_full_result_count = False
    sortable_by = ()
    list_per_page = 50
    list_max_show_all = 0
    search_help_text = "An id, or a part of the name of a function"

    def get_queryset(self, request: Any) -> Any:
        found = super().get_queryset(request).using(read().database)
        match = request.resolver_match
        if match is not None and (match.url_name or "").endswith("_changelist"):
            own = {field.name for field in self.model._meta.fields}  # noqa: SLF001 (Django's own)
            found = found.defer(*own.intersection(_LARGE))
        return found

    def get_search_results(self, request: Any, queryset: Any, search_term: str) -> tuple[Any, bool]:
        text = search_term.strip()
        try:
            return queryset.filter(pk=UUID(text)), False
        except ValueError:
            return (queryset.filter(func__contains=text) if text else queryset), False

    def changelist_view(self, request: Any, extra_context: dict[str, Any] | None = None) -> Any:
        alias = read().database
        if request.method == "POST":
            return super().changelist_view(request, extra_context)
        try:
            with Atomic(alias, savepoint=True, durable=False):
                with connections[alias].cursor() as cursor:
                    cursor.execute(
                        "select set_config('statement_timeout', %s, true)", [str(TIMEOUT_MS)]
                    )
                found = super().changelist_view(request, extra_context)
                # Here, as the rows are read by the template.
                return found.render() if hasattr(found, "render") else found
        except OperationalError as error:
            if not request.GET or "statement timeout" not in str(error):
                raise
            self.message_user(
                request,
                f"the search took longer than {TIMEOUT_MS // 1_000} s: filter by queue, or by id",
                messages.ERROR,
            )
            return HttpResponseRedirect(request.path)

    def lookup_allowed(self, lookup: str, value: str, request: Any = None) -> bool:
        # The result of a lookup in a masked value would reveal the value.
        if lookup.partition("__")[0] in _LARGE:
            return False
        return bool(super().lookup_allowed(lookup, value, request))

    def has_add_permission(self, request: Any) -> bool:
        return False

    def has_change_permission(self, request: Any, obj: object = None) -> bool:
        return False

    def has_delete_permission(self, request: Any, obj: object = None) -> bool:
        return False

    def has_manage_permission(self, request: Any) -> bool:
        """Whether the user may run the actions: the model's change permission."""
        return bool(request.user.has_perm(f"{self.opts.app_label}.change_{self.opts.model_name}"))

    def get_actions(self, request: Any) -> Any:
        # The tables are changed by chancy's statements only.
        found = super().get_actions(request)
        found.pop("delete_selected", None)
        return found

    # One row

    def get_fields(self, request: Any, obj: object = None) -> Sequence[str]:
        return [
            f"shown_{field.name}" if field.name in _LARGE else field.name
            for field in self.opts.fields
        ]

    def get_readonly_fields(self, request: Any, obj: object = None) -> Sequence[str]:
        return self.get_fields(request, obj)

    shown_arguments, shown_meta, shown_errors, shown_result, shown_limits = map(_tree, _LARGE)

    # Actions

    def act(
        self,
        request: Any,
        queryset: Any,
        work: Callable[[ConnectionBroker, list[Any]], Any],
    ) -> Any:
        """Run a coroutine function with the keys of the first `MAX_SELECTED` selected rows."""
        keys = list(queryset.values_list("pk", flat=True)[: MAX_SELECTED + 1])
        if len(keys) > MAX_SELECTED:
            self.message_user(
                request,
                f"The action applies to the first {MAX_SELECTED:,} rows only: repeat it for the "
                "others, or use the command line for millions",
                messages.WARNING,
            )
        try:
            return calls().here(lambda broker: work(broker, keys[:MAX_SELECTED]))
        except ChancyError as error:
            self.message_user(request, str(error), messages.ERROR)
            return None


class JobAdmin(_TableAdmin):
    """Unfinished jobs."""

    list_display = ("id", "func", "queue", "state", "priority", "attempt", "run_at", "pushed_at")
    list_filter = ("state", QueueFilter)
    ordering = ("-id",)
    search_fields = ("func",)
    actions = ("cancel", "run_now")

    @admin.action(description="Cancel the selected jobs", permissions=["manage"])
    def cancel(self, request: Any, queryset: Any) -> None:
        """Cancel waiting jobs, and ask running ones to stop."""
        found = self.act(request, queryset, lambda broker, ids: broker.cancel(ids))
        if found is not None:
            counts = {one: list(found.values()).count(one) for one in Cancellation}
            told = ", ".join(f"{count} {one.value}" for one, count in counts.items() if count)
            self.message_user(request, told or "None could be cancelled: try again")

    @admin.action(description="Run the selected scheduled jobs now", permissions=["manage"])
    def run_now(self, request: Any, queryset: Any) -> None:
        """Make scheduled jobs due, retries among them."""
        found = self.act(request, queryset, lambda broker, ids: broker.run_now(ids))
        if found is not None:
            self.message_user(request, f"{len(found)} scheduled jobs are due now")


class FinishedJobAdmin(_TableAdmin):
    """Finished jobs."""

    list_display = ("id", "func", "queue", "state", "attempt", "finished_at")
    list_filter = ("state", QueueFilter)
    ordering = ("-id",)
    search_fields = ("func",)


class QueueAdmin(_TableAdmin):
    """Queues."""

    list_display = ("name", "executor", "concurrency", "broker", "paused_at", "resume_at")
    ordering = ("name",)
    search_fields = ("name",)
    search_help_text = "A part of the name"
    actions = ("pause", "resume")

    def get_search_results(self, request: Any, queryset: Any, search_term: str) -> tuple[Any, bool]:
        return queryset.filter(name__contains=search_term.strip()), False

    def get_fields(self, request: Any, obj: object = None) -> Sequence[str]:
        return [field.name for field in self.opts.fields]

    @admin.action(description="Pause the selected queues", permissions=["manage"])
    def pause(self, request: Any, queryset: Any) -> None:
        """Have workers claim no more of their jobs."""
        self._each(request, queryset, lambda broker, name: broker.pause(name), "paused")

    @admin.action(description="Resume the selected queues", permissions=["manage"])
    def resume(self, request: Any, queryset: Any) -> None:
        """End their pauses."""
        self._each(request, queryset, lambda broker, name: broker.resume(name), "resumed")

    def _each(
        self,
        request: Any,
        queryset: Any,
        change: Callable[[ConnectionBroker, str], Awaitable[bool]],
        done: str,
    ) -> None:
        async def work(broker: ConnectionBroker, names: list[str]) -> int:
            return sum([await change(broker, name) for name in names])

        found = self.act(request, queryset, work)
        if found is not None:
            self.message_user(request, f"{found} queues {done}")


class DeadLetterAdmin(_TableAdmin):
    """Dead letters."""

    list_display = ("id", "func", "queue", "reason", "error", "died_at", "replayed_at")
    list_filter = (QueueFilter, ("replayed_at", admin.EmptyFieldListFilter))
    ordering = ("-died_at", "-id")
    search_fields = ("func",)
    actions = ("replay", "replay_again", "purge")

    @admin.action(description="Replay the selected dead letters", permissions=["manage"])
    def replay(self, request: Any, queryset: Any) -> None:
        """Push their jobs again, unless they were replayed before."""
        self._replay(request, queryset, force=False)

    @admin.action(description="Replay again, also what was replayed", permissions=["manage"])
    def replay_again(self, request: Any, queryset: Any) -> None:
        """Push their jobs again in any case."""
        self._replay(request, queryset, force=True)

    @admin.action(description="Purge the selected dead letters", permissions=["manage"])
    def purge(self, request: Any, queryset: Any) -> None:
        """Delete them for good."""
        found = self.act(request, queryset, lambda broker, ids: Letters(broker).purge(ids))
        if found is not None:
            self.message_user(request, f"{found} dead letters purged")

    def _replay(self, request: Any, queryset: Any, *, force: bool) -> None:
        async def work(broker: ConnectionBroker, ids: list[UUID]) -> int:
            walk = Walk(Letters(broker), LetterFilter(ids=ids), None)
            return sum(
                [
                    len(some)
                    async for some in walk.replay(ReplayOptions(force=force), app().prepare_stored)
                ]
            )

        found = self.act(request, queryset, work)
        if found is not None:
            self.message_user(request, f"{found} dead letters replayed")


def _shown(value: object) -> str:
    text = json.dumps(_masked.copy(value), indent=2, ensure_ascii=False)
    more = "\n…" if len(text) > MAX_JSON else ""
    found: str = format_html('<pre style="white-space: pre-wrap">{}{}</pre>', text[:MAX_JSON], more)
    return found


_masked = Masked(MASKED)

admin.site.register(UnfinishedJob, JobAdmin)
admin.site.register(FinishedJob, FinishedJobAdmin)
admin.site.register(DeclaredQueue, QueueAdmin)
admin.site.register(FiledLetter, DeadLetterAdmin)
