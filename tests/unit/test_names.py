"""Names are held to a list of characters, so that they are harmless wherever they are written."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chancy.checks import check_function_path, check_queue_name, check_schema_name
from chancy.errors import ConfigurationError
from chancy.text import shown

#: What no name may be: SQL, shell, terminal, path, format and markup tricks, and wrong types.
HOSTILE: tuple[object, ...] = (
    "",
    " ",
    "a b",
    "a\n",
    "\na",
    "a\0b",
    "a;b",
    "a'b",
    'a"b',
    "a`b",
    "a\\b",
    "a,b",
    "'; drop table jobs; --",
    '"; drop schema chancy cascade; --',
    "%s",
    "{schema}",
    "{0.__class__}",
    "$1",
    "$(id)",
    "<script>",
    "a&b",
    "\x1b[31m",
    "\u202eabc",
    "a\u200bb",
    "\ufeffa",
    "café☕",
    "\ud800",
    "＿ａ",
    "x" * 10_000,
    "a" * 129 + "!",
    None,
    b"default",
    1,
    ["default"],
    object(),
)
CHECKS: tuple[Callable[[object], str], ...] = (
    check_queue_name,
    check_schema_name,
    check_function_path,
)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", HOSTILE, ids=lambda name: ascii(name)[:20])
def test_hostile_names_are_refused_harmlessly(check: Callable[[object], str], name: object) -> None:
    with pytest.raises(ConfigurationError) as caught:
        check(name)
    said = str(caught.value)
    assert said.isprintable(), "an error must not carry the trick to the terminal"
    assert len(said) < 400


@pytest.mark.parametrize("name", ["default", "a", "0", "-", "..", "a.b:c/d-e_F", "x" * 128])
def test_names_of_queues(name: str) -> None:
    assert check_queue_name(name) == name


def test_a_queue_name_of_129_characters_is_refused_with_the_limit() -> None:
    with pytest.raises(ConfigurationError, match="1 to 128 of the characters"):
        check_queue_name("x" * 129)


@pytest.mark.parametrize("name", ["chancy", "_", "a1", "x" * 48, "public", "tenant_7"])
def test_names_of_schemas(name: str) -> None:
    assert check_schema_name(name) == name


@pytest.mark.parametrize("name", ["x" * 49, "1a", "pg_chancy", "pg_", "A", "a-b", "a.b", "ü"])
def test_names_that_no_schema_has(name: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot be the schema"):
        check_schema_name(name)


@pytest.mark.parametrize("path", ["a.b", "shop.jobs._work", "shop.Class.method", "módulo.función"])
def test_paths_of_functions(path: str) -> None:
    assert check_function_path(path) == path


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("shop.jobs.<lambda>", "a lambda or is defined inside another function"),
        ("shop.jobs.make.<locals>.work", "a lambda or is defined inside another function"),
        ("__main__.work", "in the script that was started"),
        ("a." + "x" * 254, "has 256 characters: the path of a function may have 255"),
        ("work", "write package.module.function"),
        ("a..b", "write package.module.function"),
        (".a.b", "write package.module.function"),
        ("a.b.", "write package.module.function"),
        ("a.1b", "write package.module.function"),
        ("a/b.c", "write package.module.function"),
        ("a.b()", "write package.module.function"),
    ],
)
def test_a_path_that_names_no_function_is_refused_with_the_reason(path: str, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        check_function_path(path)


@given(st.text())
def test_an_accepted_name_is_only_made_of_allowed_characters(name: str) -> None:
    try:
        check_queue_name(name)
    except ConfigurationError:
        return
    assert set(name) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.:/-")


@given(st.from_regex(r"[A-Za-z0-9_.:/-]{1,128}", fullmatch=True))
def test_every_name_of_the_list_is_accepted(name: str) -> None:
    assert check_queue_name(name) == name


@given(st.text() | st.binary() | st.integers() | st.lists(st.text()))
def test_what_is_shown_fits_a_line(value: object) -> None:
    text = shown(value)
    assert len(text) <= 80
    assert text.isprintable()
