"""The sandbox in the test cases of Django."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.sources import ROOT

SHOP = """
from chancy import Chancy, job

app = Chancy("postgresql://nowhere.invalid/none")


@job
async def send(to: str) -> str:
    return f"sent to {to}"


def users():
    from django.contrib.auth.models import User

    return User.objects


@job
def add(name: str) -> int:
    users().create(username=name)
    return users().count()


@job
async def add_async(name: str) -> int:
    await users().acreate(username=name)
    return await users().acount()


@job
def add_both(name: str) -> int:
    app.sync_push(add_async.job(name=name)).sync_result()
    return app.sync_push(add.job(name=f"{name} too")).sync_result()
"""

DJANGO = """
import django
from django.conf import settings

settings.configure(
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth"],
)
django.setup()

from django.contrib.auth.models import User
from django.db import connection, transaction
from django.test import SimpleTestCase, TestCase
from shop import add, add_async, add_both, app, send, users

from chancy.testing.sandbox import Sandbox


class Orders(TestCase):
    def setUp(self):
        self.sandbox = self.enterContext(Sandbox(app))
        self.enterContext(app)

    def place(self):
        with transaction.atomic():
            user = User.objects.create(username="ann")
            app.sync_push(send.job(to=user.username), within=connection)

    def test_order(self):
        self.place()
        self.sandbox.assert_pushed(send, to="ann")
        [done] = self.sandbox.sync_drain()
        self.assertEqual(done.result, "sent to ann")

    def test_again(self):
        self.sandbox.assert_not_pushed(send)
        self.assertEqual(User.objects.count(), 0)

    async def test_async_code(self):
        reference = await app.push(send.job(to="bob"))
        self.assertEqual(await reference.result(), "sent to bob")


class Rows(TestCase):
    def setUp(self):
        self.sandbox = self.enterContext(Sandbox(app))
        users().create(username="ann")

    def test_jobs_use_the_transaction_of_the_test(self):
        app.sync_push_many([add.job(name="bob"), add_async.job(name="carl")])
        self.assertEqual([done.result for done in self.sandbox.sync_drain()], [2, 3])
        self.assertEqual(app.sync_push(add_both.job(name="dora")).sync_result(), 5)
        self.assertEqual(users().count(), 5)

    async def test_they_do_in_async_tests(self):
        await app.push(add.job(name="bob"))
        [done] = await self.sandbox.drain()
        self.assertEqual((done.result, await users().acount()), (2, 2))


class Inline(SimpleTestCase):
    def test_inline(self):
        with Sandbox(app, inline=True), app:
            reference = app.sync_push(send.job(to="ann"))
            self.assertEqual(reference.sync_get().result, "sent to ann")
"""


def test_test_cases_of_django(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "test_django.py").write_text(DJANGO)
    code = (
        "import sys, test_django; from django.test.utils import get_runner;"
        "from django.conf import settings;"
        "sys.exit(get_runner(settings)(verbosity=1).run_tests(['test_django']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Ran 6 tests" in done.stdout + done.stderr
