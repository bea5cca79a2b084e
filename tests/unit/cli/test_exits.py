"""Which exit code an error has."""

from __future__ import annotations

import pytest

from chancy.cli.exits import AWAY, NO, USAGE, code_of
from chancy.errors import (
    BrokerUnavailable,
    ChancyError,
    ConfigurationError,
    JobError,
    StatementFailed,
)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (BrokerUnavailable("the server is gone"), AWAY),
        (StatementFailed("No space left on device", sqlstate="53100"), AWAY),
        (StatementFailed("Redis is full", passing=True), AWAY),
        (StatementFailed("permission denied", sqlstate="42501"), USAGE),
        (ConfigurationError("a typo"), USAGE),
        (JobError("the job is gone"), NO),
    ],
)
def test_an_error_that_passes_is_no_error_of_the_configuration(
    error: ChancyError, code: int
) -> None:
    """A supervisor and systemd do not restart a worker after an error of its configuration."""
    assert code_of(error) == code
