"""examples/third_party_plugin: installed as its README says, used, and gone again."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import psycopg
import pytest

from chancy.embedded import PostgresServer
from tests.docs.pages import page
from tests.support.command import SHOP, alone, command, environment, started
from tests.support.sources import ROOT
from tests.support.waiting import eventually_sync

EXAMPLE = ROOT / "examples" / "third_party_plugin"
PANELS = """\
import asyncio, json
from chancy import Chancy

async def main():
    async with Chancy() as chancy:
        chancy_panels = Chancy(plugins=["shop.audit"]).hooks.panels
        for panel in chancy_panels:
            if panel.name == "audit":
                print(json.dumps([dict(row)["what"] for row in await panel.rows(chancy)]))

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as pip installs it, without a network and without a trace in the sources."""
    folder = tmp_path_factory.mktemp("third_party")
    source = shutil.copytree(
        EXAMPLE, folder / "source", ignore=shutil.ignore_patterns("__pycache__", ".*")
    )
    site = folder / "site"
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "--isolated", "--disable-pip-version-check", "install"),
            *("--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--no-compile"),
            *("--target", site, source),
        ],
        check=True,
        timeout=60,
        env=environment(),
    )
    return site


class Shop:
    """A directory with an application and a place for packages of its own."""

    def __init__(self, folder: Path, dsn: str) -> None:
        self.folder = folder
        self.site = folder / "site"
        (folder / "shop.py").write_text(SHOP)
        paths = [str(self.site), *filter(None, [os.environ.get("PYTHONPATH")])]
        self.bare = {"CHANCY_DSN": dsn, "PYTHONPATH": os.pathsep.join(paths)}
        self.env = {**self.bare, "CHANCY_PLUGINS": "shop.audit"}
        self._dsn = dsn

    def audited(self, *arguments: object, code: int = 0) -> Any:
        return alone(*arguments, cwd=self.folder, env=self.env, code=code)

    def plain(self, *arguments: object, code: int = 0) -> Any:
        return alone(*arguments, cwd=self.folder, env=self.bare, code=code)

    def push(self, function: str, *more: object) -> str:
        return str(
            self.plain(
                "push", f"shop.{function}", *more, "--no-validate", "--max-attempts=1"
            ).out.strip()
        )

    def execute(self, statement: str) -> list[Any]:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            found = connection.execute(statement.encode())
            return found.fetchall() if found.description else []

    def work(self) -> None:
        """A worker process runs until nothing is left."""
        options = ("--processes=0", "--queues=default")
        env = {**self.env, "CHANCY_IMPORTS": "shop"}
        with started(command("worker", *options), cwd=self.folder, env=env) as worker:
            try:
                eventually_sync(lambda: self.execute("select 1 from chancy.jobs") == [], timeout=30)
            except AssertionError:
                raise AssertionError(worker.log) from None
            worker.process.send_signal(signal.SIGTERM)
            assert worker.process.wait(20) == 0, worker.log
            assert "hook_failed" not in worker.log


def install(shop: Shop, built: Path) -> None:
    """Installed, found, and migrated once an application names it."""
    listed = shop.plain("plugins", "list", "--json").json
    assert "shop.audit" not in [one["plugin"] for one in listed]
    shutil.copytree(built, shop.site)

    (found,) = [
        o for o in shop.plain("plugins", "list", "--json").json if o["plugin"] == "shop.audit"
    ]
    assert (found["used"], found["distribution"], found["version"]) == (
        False,
        "chancy-audit",
        "1.0",
    )
    (used,) = [
        o for o in shop.audited("plugins", "list", "--json").json if o["plugin"] == "shop.audit"
    ]
    assert (used["used"], used["component"], used["commands"]) == (True, "audit", ["audit"])
    assert used["settings"] == {"keep": 1000}

    shop.plain("migrate", "upgrade")
    assert "audit" in shop.audited("migrate", "check", code=1).err
    assert "audit is at 0002" in shop.audited("migrate", "upgrade").out
    shop.audited("migrate", "check")


def use(shop: Shop) -> str:
    """Writes by its hook in a worker process, prints by its command, shows by its panel."""
    failed, fine = shop.push("fail"), shop.push("add", "--arg=a=1")
    shop.work()
    (row,) = shop.audited("audit", "list", "--json").json
    assert row["what"] == f"job {failed} failed"
    assert row["what"] in shop.audited("audit", "list").out
    script = [sys.executable, "-c", PANELS]
    shown = subprocess.run(
        script, cwd=shop.folder, env=environment(shop.env), capture_output=True, text=True,
        timeout=30, check=True,
    )  # fmt: skip
    assert shown.stdout.strip() == f'["job {failed} failed"]'
    assert shop.plain("job", "wait", fine, "--json").json["state"] == "succeeded"
    return failed


def remove(shop: Shop, failed: str) -> None:
    """Uninstalled, while the settings still name it: said so. Then all goes on without it."""
    shutil.rmtree(shop.site)
    assert "'shop.audit'" in shop.audited("worker", "--burst", code=2).err
    shop.env = shop.bare
    shop.plain("migrate", "downgrade", "base", "--component=pruner", "--yes")
    assert "pruner is at" in shop.plain("migrate", "upgrade").out
    shop.plain("migrate", "check")
    (left,) = [
        one for one in shop.plain("migrate", "current", "--json").json["components"]
        if one["component"] == "audit"
    ]  # fmt: skip
    assert (left["state"], left["current"], left["plugin"]) == ("left behind", "0002", None)
    refused = shop.plain("migrate", "downgrade", "base", "--yes", code=2).err
    assert "'audit'" in refused
    assert "audit_version" in refused
    later = shop.push("fail")
    shop.work()
    assert shop.plain("job", "show", later, "--json").json["state"] == "failed"
    assert shop.execute("select what from chancy.audit_entries") == [(f"job {failed} failed",)]


@pytest.mark.chaos
def test_its_tables_go_up_and_down_on_each_server(
    server: PostgresServer, built: Path, tmp_path: Path
) -> None:
    shop = Shop(tmp_path, server.dsn())
    shutil.copytree(built, shop.site)
    assert "audit is at 0002" in shop.audited("migrate", "upgrade").out
    assert shop.execute("select what from chancy.audit_entries") == []
    shop.audited("migrate", "downgrade", "base", "--component", "audit", "--yes")


@pytest.mark.chaos
def test_from_its_installation_to_its_removal_and_back(
    empty_dsn: str, built: Path, tmp_path: Path
) -> None:
    shop = Shop(tmp_path, empty_dsn)
    install(shop, built)
    failed = use(shop)
    remove(shop, failed)
    shutil.copytree(built, shop.site)
    shop.env = {**shop.bare, "CHANCY_PLUGINS": "shop.audit"}
    shop.audited("migrate", "check")
    assert [o["what"] for o in shop.audited("audit", "list", "--json").json] == [
        f"job {failed} failed"
    ]
    # Taken back as its README says.
    shop.audited("migrate", "downgrade", "base", "--component", "audit", "--yes")
    shutil.rmtree(shop.site)
    shop.plain("migrate", "downgrade", "base", "--yes")


@pytest.mark.chaos
def test_its_own_tests_pass(built: Path, server_dsn: str, tmp_path: Path) -> None:
    """As its author runs them; ``server_dsn`` so that the server is not taken for a leftover."""
    tests = shutil.copytree(EXAMPLE / "tests", tmp_path / "tests")
    shutil.copy(EXAMPLE / "pyproject.toml", tmp_path)
    paths = os.pathsep.join([str(built), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tests)],
        cwd=tmp_path, env=environment({"PYTHONPATH": paths}), capture_output=True, text=True,
        timeout=90, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "skipped" not in done.stdout


def test_the_guide_shows_the_files_of_the_example() -> None:
    guide = page("docs/guides/plugins.md")
    shown = {
        block.file: block.text.partition("\n")[2].rstrip("\n")
        for block in guide.blocks
        if block.file is not None and block.file.startswith("chancy_audit/")
    }
    package = EXAMPLE / "src"
    there = {
        str(path.relative_to(package)): path.read_text().rstrip("\n")
        for path in package.rglob("*")
        if path.suffix in (".py", ".sql") and path.name != "__init__.py"
    }
    assert shown == there
    (points,) = [block.text for block in guide.blocks if "chancy_audit.plugin:Audit" in block.text
                 and block.language == "toml"]  # fmt: skip
    name = "entry-points"
    written = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())
    assert tomllib.loads(points)["project"][name] == written["project"][name]
