"""Notices: short, and safe to forge."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chancy.broker.notices import Notice, NoticeKind, channel, parse


@given(st.sampled_from(NoticeKind), st.text(max_size=128))
def test_a_notice_crosses_as_it_is(kind: NoticeKind, token: str) -> None:
    assert parse(Notice(kind, token).payload()) == Notice(kind, token)


@given(st.text())
def test_any_payload_is_read_or_ignored(payload: str) -> None:
    notice = parse(payload)
    assert notice is None or notice.payload() == payload


@pytest.mark.parametrize("kind", NoticeKind)
def test_the_longest_notice_fits(kind: NoticeKind) -> None:
    for token in ("x" * 128, str(uuid.uuid4())):
        payload = Notice(kind, token).payload()
        assert len(payload) <= 130
        assert parse(payload) is not None


@pytest.mark.parametrize(
    "payload",
    ["", ":", "w", "ww", "x:default", "W:default", " w:a", "{}", "w" * 8_000, "w:" + "x" * 199],
)
def test_foreign_data_is_ignored(payload: str) -> None:
    assert parse(payload) is None


@pytest.mark.parametrize("schema", ["chancy", "x" * 63, "x" * 64, "Ünïcode"])
def test_a_channel_is_a_name_that_postgres_does_not_cut(schema: str) -> None:
    name = channel(schema)
    assert name.isidentifier()
    assert len(name.encode()) <= 63
    assert channel(schema) == name


def test_schemas_that_share_63_characters_have_channels_of_their_own() -> None:
    assert channel("x" * 63 + "a") != channel("x" * 63 + "b")
