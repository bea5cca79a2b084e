"""The sandbox and its fixture in the runners of tests that people have."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.sources import ROOT

SHOP = """
from chancy import Chancy, job

app = Chancy("postgresql://nowhere.invalid/none")
seen = []


@job
async def send(to: str) -> str:
    seen.append(to)
    return f"sent to {to}"
"""

CONFTEST = """
import pytest


@pytest.fixture
def chancy_app():
    from shop import app
    return app
"""

PLAIN = """
from shop import app, seen, send


def place_order():
    with app:
        app.sync_push(send.job(to="ann"))


def test_order(chancy_sandbox):
    place_order()
    chancy_sandbox.assert_pushed(send, to="ann", times=1)
    assert not seen
    [done] = chancy_sandbox.sync_drain()
    assert (done.result, seen) == ("sent to ann", ["ann"])


def test_nothing_is_left_of_the_other(chancy_sandbox):
    chancy_sandbox.assert_not_pushed(send)
"""

ASYNC = """
from shop import app, send


async def test_order(chancy_sandbox):
    async with app:
        reference = await app.push(send.job(to="ann"))
    chancy_sandbox.assert_pushed(send, to="ann")
    assert await reference.result() == "sent to ann"
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


def run(folder: Path, *command: str) -> str:
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=env | {"PYTHONPATH": f"{ROOT}{os.pathsep}{folder}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    return tmp_path


def test_plain_pytest(folder: Path) -> None:
    """Without the plugin for coroutines."""
    (folder / "test_plain.py").write_text(PLAIN)
    assert "2 passed" in run(folder, "-m", "pytest", "-q", "-p", "no:asyncio", "-p", "no:randomly")


def test_pytest_asyncio(folder: Path) -> None:
    (folder / "test_async.py").write_text(ASYNC)
    options = ("-o", "asyncio_mode=auto", "-o", "asyncio_default_fixture_loop_scope=function")
    assert "1 passed" in run(folder, "-m", "pytest", "-q", *options)


def test_test_cases_of_django(folder: Path) -> None:
    (folder / "test_django.py").write_text(DJANGO)
    code = (
        "import sys, test_django; from django.test.utils import get_runner;"
        "from django.conf import settings;"
        "sys.exit(get_runner(settings)(verbosity=1).run_tests(['test_django']))"
    )
    assert "Ran 4 tests" in run(folder, "-c", code)
