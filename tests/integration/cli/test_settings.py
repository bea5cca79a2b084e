"""Where settings come from, and what is said when they cannot work."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from click.testing import CliRunner

from chancy import Chancy, Job, Queue, Worker
from chancy.cli import settings
from chancy.cli.main import cli
from chancy.cli.worker import worker
from chancy.errors import ConfigurationError
from chancy.plugins.batch import Batch, Batches
from chancy.plugins.workflow import Workflow, Workflows
from tests.support import jobs
from tests.support.command import SHOP, environment, inside
from tests.support.ports import free_port
from tests.support.sources import ROOT
from tests.support.sql import ask

_PASSWORD = "s3cret-Pässwort"


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for key in settings.KEYS:
        monkeypatch.delenv(f"CHANCY_{key.upper()}", raising=False)
    return tmp_path


def module(monkeypatch: pytest.MonkeyPatch, folder: Path, name: str, text: str) -> None:
    """Write a module that commands in this process import, and this test alone."""
    (folder / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(folder)
    # Set first, so that it is gone after the test, too.
    monkeypatch.setitem(sys.modules, name, ModuleType(name))
    del sys.modules[name]


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


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('processes = "many"', "processes: 'many' is not a valid integer range"),
        ("processes = 300", "processes: 300 is not in the range"),
        ("processes = true", "processes: True is not of the type integer range"),
        ('log-level = "loud"', "log-level: 'loud' is not one of"),
        ("tag = [true]", "tag: True is not of the type text"),
        ("tag = {gpu = 1}", "tag: {'gpu': 1} is not of the type text"),
        ("burst = 3", "burst: 3 is not of the type boolean"),
    ],
)
def test_a_wrong_value_in_the_file_is_named_with_its_key(
    directory: Path, line: str, said: str
) -> None:
    (directory / "pyproject.toml").write_text(f"[tool.chancy.worker]\n{line}\n")
    answer = inside("worker", code=2)
    assert f"[tool.chancy.worker] {said}" in answer.err
    assert "CHANCY_" not in answer.err


def test_an_option_that_may_be_repeated_takes_a_single_value_in_the_file(directory: Path) -> None:
    (directory / "pyproject.toml").write_text('[tool.chancy.worker]\ntag = "gpu=a100"\n')
    assert settings.options_of("worker", worker.params) == {"tags": ["gpu=a100"]}


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
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module(monkeypatch, directory, "shop", SHOP)
    answer = inside("plugins", "list", "--app=shop", "--json")
    assert "chancy.retry" in {one["plugin"] for one in answer.json}
    for line in (["queue", "list"], ["migrate", "upgrade"], ["worker", "--processes=0"]):
        answer = inside(*line, "--app=shop", code=2)
        assert "chancy: this application has no DSN: pass Chancy(" in answer.err
        assert "or set CHANCY_DSN (commands take --dsn, too)" in answer.err


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
        ("shop:ring", "--app shop:ring is a job: pass a Chancy"),
        ("shop:SHELF", "pass a Chancy"),
        ("shop:boom", "calling it raised ZeroDivisionError"),
        ("needy", "there is no module 'not_installed'"),
        ("extra", "importing extra failed: it needs: pip install 'more[extra]'"),
        ("broken", "importing broken failed: RuntimeError: at import"),
    ],
)
def test_a_wrong_app_is_explained(
    directory: Path, monkeypatch: pytest.MonkeyPatch, app: str, said: str
) -> None:
    extra = (
        "raise ModuleNotFoundError(\"it needs: pip install 'more[extra]'\", name='extra_module')"
    )
    modules = {
        "shop": SHOP + "\nSHELF = [1, 2]\ndef boom():\n    return 1 / 0\n"
        "@job\ndef ring():\n    return 1 / 0\n",
        "needy": "import not_installed\n",
        "extra": f"{extra}\n",
        "broken": "raise RuntimeError('at import')\n",
    }
    for name, text in modules.items():
        module(monkeypatch, directory, name, text)
    answer = inside("queue", "list", "--app", app, dsn="postgresql://127.0.0.1:1/x", code=2)
    assert said in answer.err
    assert "Traceback" not in answer.err


def test_the_current_directory_is_importable_and_the_app_takes_the_dsn(
    directory: Path, dsn: str
) -> None:
    (directory / "shop.py").write_text(SHOP)
    (directory / "pyproject.toml").write_text(f'[tool.chancy]\napp = "shop:make"\ndsn = "{dsn}"\n')
    program = Path(sys.executable).with_name("chancy")
    done = subprocess.run(
        [program, "push", "shop.add", "--arg", "a=1", "--json"],
        cwd=directory, env=environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert ask(dsn, "select func, max_attempts from chancy.jobs") == [("shop.add", 7)]


def test_an_option_that_the_app_does_not_follow_is_an_error(
    directory: Path, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = f"from chancy import Chancy\nchancy = Chancy({dsn!r}, schema='chancy')\n"
    module(monkeypatch, directory, "fixed", text)
    inside("queue", "list", "--app=fixed", "--dsn", dsn, "--schema=chancy")
    other = "postgresql://127.0.0.1/other"
    answer = inside("queue", "list", "--app=fixed", "--dsn", other, code=2)
    assert "--dsn: the application fixed takes another value, its own or the default" in answer.err
    assert "default" in inside("queue", "list", "--app=fixed", dsn=other).out


def test_a_setting_that_the_app_does_not_follow_is_warned_of(
    directory: Path, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module(
        monkeypatch, directory, "fixed", f"from chancy import Chancy\nchancy = Chancy({dsn!r})\n"
    )
    (directory / "pyproject.toml").write_text('[tool.chancy]\napp = "fixed"\nschema = "other"\n')
    answer = inside("queue", "list", dsn=f"postgresql://ann:{_PASSWORD}@127.0.0.1:1/x")
    assert answer.err.splitlines() == [
        f"chancy: {key} of the settings (CHANCY_{key.upper()} or pyproject.toml) has no effect: "
        "the application fixed takes another value, its own or the default"
        for key in ("dsn", "schema")
    ]
    assert inside("queue", "list", "--schema=chancy", dsn=dsn).err == ""


def test_settings_alone_make_an_application(directory: Path, empty_dsn: str) -> None:
    Chancy(empty_dsn, schema="elsewhere").sync_migrate()
    (directory / "pyproject.toml").write_text(
        f'[tool.chancy]\ndsn = "{empty_dsn}"\nschema = "elsewhere"\ndriver = "psycopg"\n'
    )
    assert "default" in inside("queue", "list").out


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


def test_variables_of_services_of_kubernetes_are_not_warned_of() -> None:
    found = inside(
        "plugins", "list",
        dashboard_service_host="10.0.0.7", dashboard_service_port="80",
        dashboard_service_port_http="80", dashboard_port="tcp://10.0.0.7:80",
        dashboard_port_80_tcp="tcp://10.0.0.7:80", dashboard_port_80_tcp_addr="10.0.0.7",
    )  # fmt: skip
    assert found.err == ""
    assert "CHANCY_METRICS_PORT" in inside("plugins", "list", metrics_port="9100").err


def bash(line: str, **more: str) -> dict[str, str]:
    """The variables by which bash asks what may follow a line."""
    words = line.split(" ")
    asked = {"_CHANCY_COMPLETE": "bash_complete", "COMP_WORDS": line}
    return {**asked, "COMP_CWORD": str(len(words) - 1), **more}


def offers(stdout: str) -> list[str]:
    return [one.partition(",")[2] for one in stdout.splitlines() if one]


def completed(line: str, **more: str) -> list[str]:
    """What bash offers after a line; nothing may go to stderr, which the shell shows."""
    try:
        done = CliRunner().invoke(cli, env=bash(line, **more), prog_name="chancy")
    finally:
        logging.disable(logging.NOTSET)
    assert done.stderr == ""
    return offers(done.stdout)


def test_the_shell_completes_queues_and_functions(tmp_path: Path) -> None:
    """In processes of their own, which have no functions but those of the application."""
    (tmp_path / "completed.py").write_text(
        "from chancy import Chancy, Queue, job\n"
        "chancy = Chancy(queues=[Queue(name='mailing')])\n"
        "@job(queue='mail-now')\n"
        "def send(): ...\n"
    )
    program = "from chancy.cli.main import cli; cli(prog_name='chancy')"
    for line, expected in (
        ("chancy queue pause --app=completed mai", ["mail-now", "mailing"]),
        ("chancy worker --app=completed --queues mailing,mai", ["mailing,mail-now"]),
        ("chancy push --app=completed comp", ["completed.send"]),
    ):
        done = subprocess.run(
            [sys.executable, "-P", "-c", program], env=bash(line, PYTHONPATH=str(ROOT)),
            cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert (offers(done.stdout), done.stderr) == (expected, "")


def test_the_shell_completes_nothing_of_an_application_that_cannot_be_imported() -> None:
    assert completed("chancy push --app=nowhere comp") == []
    assert completed("chancy workflow show --app=nowhere ") == []


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a completion take as long as it may on a busy machine."""
    monkeypatch.setattr("chancy.cli.shell_completion._PATIENCE_S", 60.0)


@pytest.mark.usefixtures("patient")
async def test_the_shell_completes_ids_of_jobs_and_prints_nothing_without_a_database(
    dsn: str,
) -> None:
    async with Chancy(dsn, allow=["builtins.print"]) as chancy:
        first, second = [await chancy.push(Job(func="builtins.print")) for _ in range(2)]
        later = await chancy.push(Job(func="builtins.print").with_delay(600))
    ids = [str(one.id) for one in (later, second, first)]

    async def offered(line: str, dsn: str = dsn) -> list[str]:
        return await asyncio.to_thread(completed, line, CHANCY_DSN=dsn)

    assert await offered("chancy job show ") == ids
    assert await offered(f"chancy job show {ids[1]}") == [ids[1]]
    assert await offered("chancy job retry ") == [ids[0]]
    assert await offered(f"chancy job cancel {ids[0]} ") == ids[1:]
    away = f"postgresql://postgres@127.0.0.1:{free_port()}/nowhere"
    assert await offered("chancy job show ", away) == []


@pytest.mark.usefixtures("patient")
async def test_the_shell_completes_ids_of_dead_letters_workflows_batches_and_workers(
    dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (
        "from chancy import Chancy\n"
        "from chancy.plugins.batch import Batches\n"
        "from chancy.plugins.workflow import Workflows\n"
        "chancy = Chancy(plugins=[Batches(), Workflows()])\n"
    )
    module(monkeypatch, tmp_path, "grouped", text)
    flows, batches = Workflows(), Batches()
    queues = [Queue("async", executor="async")]
    async with Chancy(dsn, queues=queues, plugins=[flows, batches]) as chancy:
        await chancy.migrate()
        flow = await chancy.push(Workflow("one").add(jobs.note.job(0), "step"))
        batch = await batches.push(chancy, Batch(name="one"), [jobs.note.job(0)])
        async with Worker(chancy, queues=["async"]) as worker:
            dead = await chancy.push(jobs.fail.job().with_max_attempts(1))
            await dead.wait(30)
            offered = {
                "workflow show": flow.id, "batch cancel": batch.id, "dead replay": dead.id,
                "worker stop": worker.worker_id,
            }  # fmt: skip
            for command, id in offered.items():
                line = f"chancy {command} --app=grouped {str(id)[:4]}"
                found = await asyncio.to_thread(completed, line, CHANCY_DSN=dsn)
                assert found == [str(id)]
