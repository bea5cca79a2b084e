"""Tests in a browser are left out only where they are not required."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import chromium


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without a browser, from which no package can be had."""
    for name in ("CHANCY_TEST_CHROMIUM", "CHANCY_TEST_BROWSER", "LD_LIBRARY_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(chromium, "FOLDER", tmp_path / "chromium")

    def refuse(*words: object, **options: object) -> None:
        raise OSError("no network")

    monkeypatch.setattr(chromium, "_node", refuse)
    return tmp_path / "chromium"


def test_a_browser_that_cannot_be_fetched_fails_where_it_is_required(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.prefix", str(chromium.FOLDER.parent))
    chromium.main()
    assert "will NOT be run" in capsys.readouterr().err
    monkeypatch.setenv("CHANCY_TEST_BROWSER", "required")
    with pytest.raises(OSError, match="no network"):
        chromium.main()


def test_tests_in_a_browser_are_not_left_out_where_they_are_required(
    request: pytest.FixtureRequest, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request.node.add_marker(chromium.MARK)
    items = [request.node]
    monkeypatch.setenv("CHANCY_TEST_BROWSER", "required")
    with pytest.raises(pytest.UsageError, match="there is no Chromium"):
        chromium.pytest_collection_modifyitems(request.config, items)
    folder.mkdir()
    (folder / "chromium").touch()
    with pytest.raises(pytest.UsageError, match="there is no axe-core"):
        chromium.pytest_collection_modifyitems(request.config, items)
    (folder / "axe.min.js").touch()
    chromium.pytest_collection_modifyitems(request.config, items)
    assert items == [request.node]


def test_another_chromium_keeps_its_libraries(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/own")
    monkeypatch.setenv("CHANCY_TEST_CHROMIUM", "/opt/own/chromium")
    assert chromium.environment()["LD_LIBRARY_PATH"] == "/opt/own"
    monkeypatch.delenv("CHANCY_TEST_CHROMIUM")
    folder.mkdir()
    (folder / "chromium").touch()
    assert chromium.environment()["LD_LIBRARY_PATH"] == f"{folder / 'lib'}:{folder}:/opt/own"
