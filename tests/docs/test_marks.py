"""The page of Redis names the tests that are marked for it, all of them."""

from __future__ import annotations

import re

from tests.docs.marks import PAGE, marked, rows, written


def test_the_page_names_the_tests_that_are_marked() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == written(text), "python -m tests.docs.marks writes the page anew"


def test_no_mark_is_for_a_line_that_is_not_there() -> None:
    listed = rows(PAGE.read_text(encoding="utf-8"))
    assert len(listed) == len(set(listed))
    kinds = {row[0] for row in listed}
    assert {row for row in marked() if row[0] in kinds} <= set(listed)


def test_every_line_names_its_tests_or_states_that_it_has_none() -> None:
    text = PAGE.read_text(encoding="utf-8")
    unshown = [row for row in rows(text) if not marked().get(row)]
    assert [row for row in unshown if not row.startswith("F")] == []
    for row in unshown:
        assert re.search(rf"^\| {row} \| .* \| `not yet` \|$", text, re.MULTILINE), row
