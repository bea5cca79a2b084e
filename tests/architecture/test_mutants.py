"""Each mutation still applies to the code, and names tests that exist."""

from __future__ import annotations

import pytest

from tests.support.mutants import ROOT, Mutation, load


@pytest.mark.parametrize("mutation", load(), ids=lambda one: one.promise)
def test_mutation_applies(mutation: Mutation) -> None:
    assert (ROOT / mutation.file).read_text().count(mutation.old) == 1
    assert mutation.new != mutation.old
    for test in mutation.tests:
        assert (ROOT / test.partition("::")[0]).exists(), test
