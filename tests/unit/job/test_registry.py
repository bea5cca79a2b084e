"""The registry: a row chooses among functions; it never chooses what is imported."""

from __future__ import annotations

import importlib
import sys

import pytest

from chancy.errors import ConfigurationError, PushError, UnknownFunction
from chancy.job.definition import DECORATED
from chancy.job.registry import Registry
from tests.unit import jobs

#: What a row should not be able to run, and what is no function at all.
HOSTILE = [
    "os.system",
    "posix.system",
    "subprocess.run",
    "builtins.eval",
    "builtins.__import__",
    "__import__",
    "eval",
    "a.b.c",
    "a.b.c.d.e.f.g",
    "shutil.rmtree",
    "",
    ".",
    "..",
    ".jobs.plain",
    "os.",
    ".system",
    "tests.unit.jobs.<lambda>",
    "tests.unit.jobs.make_local.<locals>.local",
    "tests/unit/jobs.plain",
    "../../etc/passwd",
    "__main__.main",
    "tests.unit.jobs\0.plain",
    "x" * 10_000,
    "x." * 5_000 + "y",
    "os.system; import sys",
]


@pytest.mark.parametrize("path", HOSTILE, ids=lambda path: ascii(path)[:30])
def test_unregistered_functions_are_not_found(path: str) -> None:
    before = set(sys.modules)
    with pytest.raises(UnknownFunction) as caught:
        Registry().find(path)
    assert set(sys.modules) == before, "a row made us import something"
    assert len(str(caught.value)) < 400
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("path", HOSTILE, ids=lambda path: ascii(path)[:30])
def test_an_allowed_application_gives_nothing_else(path: str) -> None:
    registry = Registry(["tests.unit.jobs.*"])
    with pytest.raises(UnknownFunction):
        registry.find(path)


@pytest.mark.parametrize(
    "name",
    [
        "dumps",  # re-exported
        "job",
        "hidden",  # made by a decorator elsewhere
        "LIMIT",
        "missing",
        "annotations",
        "__builtins__",
        "__loader__",
        "__spec__",
        "__import__",
        "__class__",
        "Shop.open",
        "json.dumps",
        "plain.__globals__",
        "plain.__call__",
    ],
)
def test_an_allowed_module_gives_only_functions_it_defines(name: str) -> None:
    with pytest.raises(UnknownFunction):
        Registry(["tests.unit.jobs.*"]).find(f"tests.unit.jobs.{name}")


def test_a_registered_function_is_found() -> None:
    registry = Registry()
    assert registry.find("tests.unit.jobs.registered") is jobs.registered


def test_an_allowed_function_is_found() -> None:
    registry = Registry(["shop.*", "tests.unit.jobs.pl*"])
    assert registry.find("tests.unit.jobs.plain") is jobs.plain
    assert registry.find("tests.unit.jobs.plain") is jobs.plain


LATE = "tests.unit.job.jobs_imported_late"


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> None:
    """The module `LATE` has not been imported."""
    monkeypatch.delitem(sys.modules, LATE, raising=False)
    monkeypatch.delitem(DECORATED, f"{LATE}.Shop.open", raising=False)


@pytest.mark.usefixtures("late")
def test_an_allowed_function_is_imported() -> None:
    found = Registry([f"{LATE}.*"]).find(f"{LATE}.work")
    assert found is importlib.import_module(LATE).work


@pytest.mark.usefixtures("late")
def test_an_allowed_static_method_is_imported() -> None:
    found = Registry([f"{LATE}.*"]).find(f"{LATE}.Shop.open")
    assert found is importlib.import_module(LATE).Shop.open


def test_patterns_match_case() -> None:
    with pytest.raises(UnknownFunction):
        Registry(["Tests.*"]).find("tests.unit.jobs.plain")


def test_the_error_gives_advice() -> None:
    with pytest.raises(UnknownFunction) as caught:
        Registry(["shop.*"]).find("tests.unit.jobs.plain")
    assert str(caught.value) == (
        "no job is registered as 'tests.unit.jobs.plain', and allow=['shop.*'] does not match it: "
        "import its module in the worker's application, or add it to allow"
    )


def test_a_re_exported_function_is_refused_with_its_home() -> None:
    with pytest.raises(
        UnknownFunction, match="is defined in 'json': use the path of the module that"
    ):
        Registry(["*"]).find("tests.unit.jobs.dumps")


@pytest.mark.parametrize(
    "module", ["tests.unit.nowhere", "tests.unit.job.exits", "no_such_package.x"]
)
def test_a_module_that_cannot_be_imported_is_an_unknown_function(module: str) -> None:
    with pytest.raises(UnknownFunction, match=r"cannot be imported: \w+: "):
        Registry(["*"]).find(f"{module}.work")


def test_allow_is_a_list_not_a_text() -> None:
    with pytest.raises(ConfigurationError, match=r"must be a list of str: pass patterns"):
        Registry("shop.*")


@pytest.mark.parametrize("path", ["tests.unit.jobs.plain", "tests.unit.jobs.registered"])
def test_existing_functions_may_be_pushed(path: str) -> None:
    registry = Registry()
    registry.check(path)
    registry.check(path)


@pytest.mark.parametrize(
    ("path", "error", "said"),
    [
        ("tests.unit.jobs.missing", PushError, "has no function 'missing'; to push a job for"),
        ("tests.unit.jobs.LIMIT", PushError, "has no function 'LIMIT'"),
        ("tests.unit.jobs.dumps", PushError, "is defined in 'json'"),
        ("tests.unit.jobs.Shop.open", PushError, "cannot be imported"),
        ("no_such_package.work", PushError, "pass validate=False"),
        ("tests.unit.job.exits.work", PushError, "cannot be imported: SystemExit: 3"),
        ("work", ConfigurationError, "is not the path of a function"),
    ],
)
def test_functions_that_workers_cannot_import_are_refused_at_the_push(
    path: str, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        Registry().check(path)
