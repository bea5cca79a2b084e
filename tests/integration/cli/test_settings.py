"""Where settings come from, and what is said when they cannot work."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from uuid import UUID

import pytest

from chancy import Chancy, Job, Queue, Worker
from chancy.cli import settings
from chancy.embedded import free_port
from chancy.errors import ConfigurationError
from chancy.plugins.batch import Batch, Batches
from chancy.plugins.workflow import Workflow, Workflows
from tests.support import jobs
from tests.support.command import SHOP, alone, inside
from tests.support.sources import ROOT
from tests.support.waiting import eventually

_PASSWORD = "s3cret-Pässwort"


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for key in settings.KEYS:
        monkeypatch.delenv(f"CHANCY_{key.upper()}", raising=False)
    return tmp_path


def test_options_come_before_the_environment_before_the_file(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (directory / "pyproject.toml").write_text(
        '[tool.chancy]\ndsn = "file"\nschema = "file"\napp = "file"\nallow = ["a.*"]\n'
    )
    monkeypatch.setenv("CHANCY_DSN", "environment")
    monkeypatch.setenv("CHANCY_SCHEMA", "environment")
    monkeypatch.setenv("CHANCY_IMPORTS", "shop.jobs, shop.mail")
    monkeypatch.setenv("CHANCY_APP", "")
    found = settings.read({"dsn": "option", "schema": None})
    assert (found.dsn, found.schema_name, found.app) == ("option", "environment", "file")
    assert found.imports == ("shop.jobs", "shop.mail")
    assert found.allow == ("a.*",)


def test_the_nearest_file_above_counts(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (directory / "pyproject.toml").write_text('[tool.chancy]\nschema = "outer"\n')
    below = directory / "a" / "b"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    assert settings.read({}).schema_name == "outer"
    (below.parent / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    assert settings.read({}).schema_name is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('schemas = "x"', ("unknown key 'schemas'", "did you mean 'schema'", "listen_dsn")),
        ('zzz = "x"', ("unknown key 'zzz'", "Known keys")),
        ('driver = "mysql"', ("driver", "asyncpg")),
        ("imports = 3", ("imports",)),
        ("this is no toml", ("cannot be read",)),
    ],
)
def test_a_wrong_file_is_named_with_the_key(
    directory: Path, text: str, said: tuple[str, ...]
) -> None:
    file = directory / "pyproject.toml"
    file.write_text(f"[tool.chancy]\n{text}\n")
    answer = inside("queue", "list", dsn="postgresql://127.0.0.1:1/x", code=2)
    for words in (str(file), *said):
        assert words in answer.err


def test_an_unknown_option_of_a_command_in_the_file_is_named(directory: Path) -> None:
    (directory / "pyproject.toml").write_text('[tool.chancy.worker]\nqueuez = "a"\n')
    answer = inside("worker", code=2)
    assert "[tool.chancy.worker]: has an unknown key 'queuez'; did you mean 'queues'?" in answer.err
    (directory / "pyproject.toml").write_text('[tool.chancy.worker]\ndsn = "a"\n')
    assert "unknown key 'dsn'" in inside("worker", code=2).err
    (directory / "pyproject.toml").write_text('[tool.chancy.worker]\nprocesses = "many"\n')
    assert "'many' is not a valid integer range" in inside("worker", code=2).err


def test_a_wrong_variable_is_named() -> None:
    assert "the environment: driver" in inside("queue", "list", driver="mysql", code=2).err


def test_the_error_of_a_setting_does_not_show_its_value() -> None:
    with pytest.raises(ConfigurationError) as caught:
        settings.Settings.of({"dsn": [_PASSWORD], "other": _PASSWORD}, source="x.toml")
    assert _PASSWORD not in str(caught.value)
    assert _PASSWORD not in repr(settings.Settings.of({"dsn": _PASSWORD}, source="x"))


def test_without_a_database_it_raises_a_clear_error() -> None:
    assert "--dsn, set CHANCY_DSN" in inside("queue", "list", code=2).err


def test_an_application_without_a_dsn_can_be_imported_and_its_plugins_listed(
    directory: Path,
) -> None:
    (directory / "shop.py").write_text(SHOP)
    answer = alone("plugins", "list", "--app=shop", "--json", cwd=directory)
    assert "chancy.retry" in {one["plugin"] for one in answer.json}
    for line in ("queue list", "worker", "migrate upgrade"):
        answer = alone(*line.split(), "--app=shop", cwd=directory, code=2)
        assert "chancy: this application has no DSN: pass Chancy(" in answer.err
        assert "or set CHANCY_DSN (commands take --dsn, too)" in answer.err
        assert "Traceback" not in answer.err


@pytest.mark.parametrize("line", ["queue list", "job list", "worker list", "migrate upgrade",
                                  "migrate check", "migrate current"])  # fmt: skip
def test_a_database_that_is_unavailable_is_code_4(line: str) -> None:
    answer = inside(*line.split(), dsn=f"postgresql://ann:{_PASSWORD}@127.0.0.1:1/shop", code=4)
    [said] = answer.err.splitlines()
    assert said.startswith('chancy: database "shop" at 127.0.0.1:1 cannot be reached: ')
    assert "Pässwort" not in answer.out + answer.err


def test_health_fails_without_a_database_and_names_the_check() -> None:
    answer = inside("worker", "health", dsn=f"postgresql://a:{_PASSWORD}@127.0.0.1:1/x", code=1)
    assert "the database does not respond" in answer.err
    assert "Pässwort" not in answer.err


def test_a_dsn_that_cannot_be_read_does_not_show_its_password() -> None:
    broken = f"postgresql://ann:{_PASSWORD}@x%zz:5432/shop?sslmod=1"
    answer = inside("queue", "list", dsn=broken, code=2)
    assert "Pässwort" not in answer.err


@pytest.mark.parametrize(
    ("app", "said"),
    [
        ("nowhere:chancy", "no module 'nowhere'"),
        ("shop.nowhere:chancy", "no module 'shop.nowhere'"),
        ("shop.py:chancy", "this is a file; pass the module, for example shop:chancy"),
        ("shop:nothing", "module shop has no 'nothing'; try shop:chancy"),
        ("shop:add", "pass a Chancy"),
        ("shop:SHELF", "pass a Chancy"),
        ("shop:boom", "calling it raised ZeroDivisionError"),
        ("needy", "there is no module 'not_installed'"),
        ("extra", "importing extra failed: it needs: pip install 'more[extra]'"),
        ("broken", "importing broken failed: RuntimeError: at import"),
    ],
)
def test_a_wrong_app_is_explained(
    directory: Path, dsn: str, monkeypatch: pytest.MonkeyPatch, app: str, said: str
) -> None:
    more = "\nSHELF = [1, 2]\ndef boom():\n    return 1 / 0\n"
    (directory / "shop.py").write_text(SHOP + more)
    (directory / "needy.py").write_text("import not_installed\n")
    (directory / "extra.py").write_text(
        "raise ModuleNotFoundError(\"it needs: pip install 'more[extra]'\", name='extra_module')\n"
    )
    (directory / "broken.py").write_text("raise RuntimeError('at import')\n")
    monkeypatch.syspath_prepend(directory)
    for name in ("shop", "needy", "extra", "broken"):
        monkeypatch.delitem(__import__("sys").modules, name, raising=False)
    answer = inside("queue", "list", "--app", app, dsn=dsn, code=2)
    assert said in answer.err
    assert "Traceback" not in answer.err


def test_the_current_directory_is_importable_and_the_app_takes_the_dsn(
    directory: Path, dsn: str
) -> None:
    (directory / "shop.py").write_text(SHOP)
    (directory / "pyproject.toml").write_text(f'[tool.chancy]\napp = "shop:make"\ndsn = "{dsn}"\n')
    program = Path(__import__("sys").executable).with_name("chancy")
    import subprocess

    from tests.support.command import environment

    done = subprocess.run(
        [program, "push", "shop.add", "--arg", "a=1", "--json"],
        cwd=directory, env=environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (listed,) = alone("job", "list", "--json", cwd=directory).json
    assert (listed["func"], listed["max_attempts"]) == ("shop.add", 7)


def test_an_option_that_the_app_does_not_follow_is_an_error(directory: Path, dsn: str) -> None:
    (directory / "fixed.py").write_text(
        f"from chancy import Chancy\nchancy = Chancy({dsn!r}, schema='chancy')\n"
    )
    alone("queue", "list", "--app=fixed", "--dsn", dsn, "--schema=chancy", cwd=directory)
    other = "postgresql://127.0.0.1/other"
    answer = alone("queue", "list", "--app=fixed", "--dsn", other, cwd=directory, code=2)
    assert "--dsn: the application fixed sets its own value" in answer.err
    env = {"CHANCY_DSN": other}
    assert "default" in alone("queue", "list", "--app=fixed", cwd=directory, env=env).out


def test_settings_alone_make_an_application(directory: Path, empty_dsn: str) -> None:
    Chancy(empty_dsn, schema="elsewhere").sync_migrate()
    (directory / "pyproject.toml").write_text(
        f'[tool.chancy]\ndsn = "{empty_dsn}"\nschema = "elsewhere"\ndriver = "psycopg"\n'
    )
    assert "default" in inside("queue", "list").out
    assert "of checkout" not in inside("bench", code=2).err
    assert "not in a checkout" in inside("bench", code=2).err


def test_a_misspelled_variable_is_warned_of_with_the_nearest_name() -> None:
    answer = inside(
        "plugins", "list", queus="mail", team="shop", service_host="::1", streams_lease_s="9"
    )
    assert answer.err.splitlines() == [
        "chancy: the variable CHANCY_QUEUS is not one of chancy's and has no effect: did you mean "
        "CHANCY_QUEUES?",
        "chancy: the variable CHANCY_TEAM is not one of chancy's and has no effect",
    ]
    assert inside("plugins", "list", queus="mail", worker_number="1").err == ""


def completed(folder: Path, line: str, **more: str) -> list[str]:
    """What bash offers after a line; nothing may go to stderr, which the shell shows."""
    words = line.split(" ")
    program = "from chancy.cli.main import cli; cli(prog_name='chancy')"
    env = {
        "_CHANCY_COMPLETE": "bash_complete",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        [sys.executable, "-P", "-c", program],
        env={**os.environ, **env, **more}, cwd=folder, capture_output=True, text=True, timeout=30,
        check=False,
    )  # fmt: skip
    assert done.stderr == ""
    return [one.partition(",")[2] for one in done.stdout.splitlines() if one]


def test_the_shell_completes_queues_and_functions(tmp_path: Path) -> None:
    (tmp_path / "completed.py").write_text(
        "from chancy import Chancy, Queue, job\n"
        "chancy = Chancy(queues=[Queue(name='mailing')])\n"
        "@job(queue='mail-now')\n"
        "def send(): ...\n"
    )
    app = "--app=completed"
    assert completed(tmp_path, f"chancy queue pause {app} mai") == ["mail-now", "mailing"]
    assert completed(tmp_path, f"chancy worker {app} --queues mailing,mai") == ["mailing,mail-now"]
    assert completed(tmp_path, f"chancy push {app} comp") == ["completed.send"]
    assert completed(tmp_path, "chancy push --app=nowhere comp") == []
    assert completed(tmp_path, "chancy workflow show --app=nowhere ") == []


async def test_the_shell_completes_ids_of_jobs_and_prints_nothing_without_a_database(
    dsn: str, tmp_path: Path
) -> None:
    async with Chancy(dsn, allow=["builtins.print"]) as chancy:
        first, second = [await chancy.push(Job(func="builtins.print")) for _ in range(2)]
        later = await chancy.push(Job(func="builtins.print").with_delay(600))
    here = {"CHANCY_DSN": dsn}
    ids = [str(one.id) for one in (later, second, first)]

    async def offers(line: str, *expected: str) -> None:
        # Under load, one completion may run out of its time, and offers nothing.
        await eventually(lambda: completed(tmp_path, line, **here) == [*expected])

    await offers("chancy job show ", *ids)
    await offers(f"chancy job show {ids[1]}", ids[1])
    await offers("chancy job retry ", ids[0])
    await offers(f"chancy job cancel {ids[0]} ", *ids[1:])
    away = {"CHANCY_DSN": f"postgresql://postgres@127.0.0.1:{free_port()}/nowhere"}
    assert completed(tmp_path, "chancy job show ", **away) == []


async def test_the_shell_completes_ids_of_dead_letters_workflows_batches_and_workers(
    dsn: str, tmp_path: Path
) -> None:
    (tmp_path / "grouped.py").write_text(
        "from chancy import Chancy\n"
        "from chancy.plugins.batch import Batches\n"
        "from chancy.plugins.workflow import Workflows\n"
        "chancy = Chancy(plugins=[Batches(), Workflows()])\n"
    )
    flows, batches = Workflows(), Batches()
    queues = [Queue("async", executor="async")]
    async with Chancy(dsn, queues=queues, plugins=[flows, batches]) as chancy:
        await chancy.migrate()
        flow = await flows.push(chancy, Workflow("one").add(jobs.note.job(0), "step"))
        batch = await batches.push(chancy, Batch(name="one"), [jobs.note.job(0)])
        async with Worker(chancy) as worker:
            dead = await chancy.push(jobs.fail.job().with_max_attempts(1))
            await dead.wait(30)
            offered = {
                "workflow show": flow.id, "batch cancel": batch.id, "dead replay": dead.id,
                "worker stop": worker.worker_id,
            }  # fmt: skip
            for command, id in offered.items():
                line = f"chancy {command} --app=grouped {str(id)[:4]}"

                async def found(line: str = line, id: UUID = id) -> bool:
                    offers = partial(completed, tmp_path, line, CHANCY_DSN=dsn)
                    return await asyncio.to_thread(offers) == [str(id)]

                await eventually(found)
