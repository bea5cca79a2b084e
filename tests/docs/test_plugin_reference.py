"""What plugins are written with has its place in the reference."""

from __future__ import annotations

import dataclasses

import pytest

from chancy.broker.values import Capability
from chancy.plugin.runtime import Application, CommandLine, Panel
from chancy.postgres.schema.component import Migrations
from tests.docs import source
from tests.docs.pages import page, words_of

API = page("docs/reference/api.md")


def test_every_capability_is_listed() -> None:
    listed = [cell.strip("`") for cell in API.column("Capability")]
    assert listed == [one.name for one in Capability]


@pytest.mark.parametrize("kind", [Application, CommandLine, Migrations, Panel])
def test_every_member_is_in_its_section(kind: type) -> None:
    fields = (
        [one.name for one in dataclasses.fields(kind)] if dataclasses.is_dataclass(kind) else []
    )
    assert {*source.members(kind), *fields} <= words_of(API.section(kind.__name__))
