"""What ``chancy push --wait`` and ``chancy job wait`` print."""

from __future__ import annotations

from uuid import uuid4

import pytest

from chancy.cli import output
from chancy.serialization.sealed import sealed
from chancy.states import State
from tests.unit.results.shelf import OOPS, queued


def test_an_encrypted_result_is_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    output.finished(queued(uuid4(), State.SUCCEEDED, sealed("k1", "gAAAA"), OOPS), json_=False)
    assert capsys.readouterr().out == 'succeeded  "encrypted (key k1)"\n'


def test_a_failed_job_is_shown_with_its_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exited:
        output.finished(queued(uuid4(), State.FAILED, None, OOPS), json_=False)
    assert (exited.value.code, capsys.readouterr().out) == (1, "failed  null\nno\n")
