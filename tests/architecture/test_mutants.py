"""Each mutation still applies to the code, and names tests that exist."""

from __future__ import annotations

from tests.support.mutants import ROOT, load


def test_mutations_apply() -> None:
    mutations = load()
    wrong = [
        one.promise
        for one in mutations
        if (ROOT / one.file).read_text().count(one.old) != 1
        or one.new == one.old
        or not all((ROOT / test.partition("::")[0]).exists() for test in one.tests)
    ]
    assert mutations
    assert wrong == []
