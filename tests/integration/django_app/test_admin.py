"""The admin, asked as a browser does."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import psycopg
import pytest
from django.contrib.admin.exceptions import DisallowedModelAdminLookup
from django.contrib.contenttypes.models import ContentType
from django.contrib.messages.storage.fallback import FallbackStorage
from django.test import RequestFactory
from django.urls import resolve

from chancy import Job, State
from chancy.django import app
from chancy.django.admin import BoundedPaginator
from chancy.django.models import DeclaredQueue, FiledLetter, FinishedJob, UnfinishedJob
from chancy.django.testing import run_jobs
from tests.integration.django_app import tasks

pytestmark = pytest.mark.usefixtures("database")


class Person:
    """A user that is not stored."""

    pk = 1
    is_active = is_staff = True

    def __init__(self, may: frozenset[str]) -> None:
        self.may = may

    def get_username(self) -> str:
        return "ann"

    def has_usable_password(self) -> bool:
        return False

    def has_perm(self, perm: str, obj: object = None) -> bool:
        return perm in self.may

    def has_module_perms(self, app_label: str) -> bool:
        return True


EVERYTHING = frozenset(
    f"chancy.{what}_{model}"
    for what in ("view", "change")
    for model in ("unfinishedjob", "finishedjob", "declaredqueue", "filedletter")
)


def ask(path: str, *, may: frozenset[str] = EVERYTHING, **data: Any) -> tuple[int, str, list[str]]:
    """The status, the page, and the messages of a request; with an action it is a POST."""
    place = f"/admin/chancy/{path}/"
    make = RequestFactory().post if "action" in data else RequestFactory().get
    request: Any = make(place, data)
    request.user = Person(may)
    request.session = {}
    request._messages = FallbackStorage(request)
    request._dont_enforce_csrf_checks = True
    request.resolver_match = resolve(place)
    found: Any = request.resolver_match
    answer = found.func(request, *found.args, **found.kwargs)
    if hasattr(answer, "render"):
        answer.render()
    return answer.status_code, answer.content.decode(), [str(one) for one in request._messages]


def act(path: str, action: str, *keys: object, may: frozenset[str] = EVERYTHING) -> list[str]:
    selected = {"action": action, "_selected_action": [str(key) for key in keys], "index": 0}
    return ask(path, may=may, **selected)[2]


@pytest.fixture(autouse=True)
def known() -> None:
    """Has Django know the types of the models, which its own tables would say."""
    for model in (UnfinishedJob, FinishedJob, DeclaredQueue, FiledLetter):
        own = model._meta
        kind = ContentType(id=1, app_label=own.app_label, model=own.model_name)
        cached: Any = ContentType.objects
        cached._add_to_cache("default", kind)


@pytest.fixture
def some() -> list[UUID]:
    with_secret = Job(func="shop.pay", arguments={"password": "hunter2", "n": 1})
    jobs = [with_secret, Job(func="shop.ship", queue="b"), Job(func="shop.later")]
    jobs[2] = jobs[2].with_delay(3_600)
    return [app().sync_push(one, validate=False).id for one in jobs]


def test_jobs_are_listed_searched_and_shown_without_secrets(some: list[UUID]) -> None:
    status, page, _ = ask("unfinishedjob")
    assert status == 200
    assert all(str(id) in page for id in some)
    searches: list[Any] = [{"q": "shop.sh"}, {"q": str(some[1])}, {"queue": "b"}]
    for search in [*searches, {"q": f" {some[1]} "}]:
        _, page, _ = ask("unfinishedjob", **search)
        assert [str(id) in page for id in some] == [False, True, False], search
    _, page, _ = ask("unfinishedjob", state__exact=int(State.SCHEDULED))
    assert [str(id) in page for id in some] == [False, False, True]
    status, page, _ = ask(f"unfinishedjob/{some[0]}/change")
    assert status == 200
    assert "&quot;n&quot;: 1" in page
    assert "hunter2" not in page
    assert 'name="_save"' not in page


def test_a_lookup_in_the_address_does_not_tell_masked_values(some: list[UUID]) -> None:
    for lookup in ("arguments__password__startswith", "arguments", "meta__x", "errors__0__isnull"):
        search: Any = {lookup: "h"}
        with pytest.raises(DisallowedModelAdminLookup):
            ask("unfinishedjob", **search)
    assert ask("unfinishedjob", func__startswith="shop")[0] == 200


def test_jobs_are_cancelled_and_run_now(some: list[UUID]) -> None:
    assert act("unfinishedjob", "run_now", some[0], some[2]) == ["1 scheduled jobs are due now"]
    assert act("unfinishedjob", "cancel", some[1]) == ["1 cancelled"]
    states = dict(UnfinishedJob.objects.values_list("id", "state"))
    assert states == {some[0]: State.PENDING, some[2]: State.PENDING}
    assert str(some[1]) in ask("finishedjob")[1]


def test_a_viewer_cannot_act(some: list[UUID]) -> None:
    look = frozenset({"chancy.view_unfinishedjob"})
    status, page, _ = ask("unfinishedjob", may=look)
    assert status == 200
    assert 'value="cancel"' not in page
    act("unfinishedjob", "cancel", *some, may=look)
    assert UnfinishedJob.objects.count() == 3


def test_queues_are_paused_and_resumed() -> None:
    assert act("declaredqueue", "pause", "default") == ["1 queues paused"]
    tasks.add.enqueue(1)
    assert run_jobs() == []
    assert act("declaredqueue", "resume", "default") == ["1 queues resumed"]
    assert ask("declaredqueue", q="defa")[0] == 200
    assert UnfinishedJob.objects.filter(state=State.PENDING).count() == 1


def test_dead_letters_are_replayed_and_purged() -> None:
    result = tasks.fail.enqueue()
    run_jobs(scheduled=True, raises=False)
    assert "no luck" in ask(f"filedletter/{result.id}/change")[1]
    assert act("filedletter", "replay", result.id) == ["1 dead letters replayed"]
    assert act("filedletter", "replay", result.id) == ["0 dead letters replayed"]
    [again] = UnfinishedJob.objects.all()
    assert again.func == result.task.module_path
    assert act("filedletter", "purge", result.id) == ["1 dead letters purged"]
    assert FiledLetter.objects.count() == 0


def test_a_list_counts_no_more_rows_than_it_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chancy.django.admin.MAX_ROWS", 2)
    app().sync_push_many([Job(func="shop.pay") for _ in range(5)], validate=False)
    assert BoundedPaginator(UnfinishedJob.objects.order_by("-id"), 1).count == 2


def test_a_search_that_takes_too_long_is_given_up(
    monkeypatch: pytest.MonkeyPatch, dsn: str
) -> None:
    monkeypatch.setattr("chancy.django.admin.TIMEOUT_MS", 50)
    with psycopg.connect(dsn) as other:
        other.execute("lock table chancy.jobs in access exclusive mode")
        status, _, told = ask("unfinishedjob", q="pay")
    assert (status, told[0][:22]) == (302, "the search took longer")
    monkeypatch.setattr("chancy.django.admin.TIMEOUT_MS", 60_000)
    assert ask("unfinishedjob", q="pay")[0] == 200
