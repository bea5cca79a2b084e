"""The pages, one module each, and their addresses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.responses import Response

from chancy.plugins.dashboard.pages import (
    audit_page,
    bulk_page,
    cron_page,
    groups_page,
    job_page,
    jobs_page,
    letters_page,
    limits_page,
    queues_page,
    workers_page,
)
from chancy.plugins.dashboard.site import View

#: Method, path below the dashboard, handler. All need `Action.VIEW`; the handler of a form asks for
#: its own action as well.
PAGES: tuple[tuple[str, str, Callable[[View], Awaitable[Response]]], ...] = (
    ("GET", "", queues_page.overview),
    ("GET", "queues", queues_page.show),
    ("POST", "queues/pause", queues_page.pause),
    ("POST", "queues/resume", queues_page.resume),
    ("POST", "queues/change", queues_page.change),
    ("GET", "jobs", jobs_page.show),
    ("POST", "jobs/cancel", jobs_page.cancel),
    ("POST", "jobs/run", jobs_page.run_now),
    ("POST", "jobs/release", jobs_page.release),
    ("POST", "jobs/replay", jobs_page.replay),
    ("POST", "jobs/change", job_page.change),
    ("POST", "jobs/cancel-all", bulk_page.cancel_all),
    ("POST", "jobs/run-all", bulk_page.run_all),
    ("POST", "jobs/replay-all", bulk_page.replay_all),
    ("GET", "jobs/{id}", job_page.show),
    ("GET", "dead-letters", letters_page.show),
    ("GET", "dead-letters/groups/{fingerprint}", letters_page.show_group),
    ("GET", "dead-letters/{id}", letters_page.show_letter),
    ("POST", "dead-letters/replay", letters_page.replay),
    ("POST", "dead-letters/purge", letters_page.purge),
    ("POST", "dead-letters/replay-all", letters_page.replay_group),
    ("POST", "dead-letters/purge-all", letters_page.purge_group),
    ("GET", "workers", workers_page.show),
    ("POST", "workers/stop", workers_page.stop),
    ("GET", "cron", cron_page.show),
    ("POST", "cron/pause", cron_page.pause),
    ("POST", "cron/resume", cron_page.resume),
    ("POST", "cron/run", cron_page.run),
    ("GET", "cron/{name:path}", cron_page.show_entry),
    ("GET", "workflows", groups_page.show_workflows),
    ("GET", "workflows/{id}", groups_page.show_workflow),
    ("POST", "workflows/retry", groups_page.retry_workflow),
    ("POST", "workflows/cancel", groups_page.cancel_workflow),
    ("GET", "batches", groups_page.show_batches),
    ("GET", "batches/{id}", groups_page.show_batch),
    ("POST", "batches/cancel", groups_page.cancel_batch),
    ("GET", "limits", limits_page.show),
    ("POST", "limits/skip", limits_page.skip),
    ("GET", "panels/{name}", limits_page.show_panel),
    ("GET", "checkup", queues_page.checkup),
    ("GET", "audit", audit_page.show),
    ("POST", "audit/stop", audit_page.stop),
)
