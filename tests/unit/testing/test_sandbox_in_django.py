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
from shop import app, send

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
    assert "Ran 4 tests" in done.stdout + done.stderr
