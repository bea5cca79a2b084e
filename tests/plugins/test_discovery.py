"""Plugins of distributions: listed without importing them, and created with settings from files."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, Field

from chancy import Chancy, Plugin
from chancy.app.default_plugins import make
from chancy.broker.values import Capability
from chancy.errors import ConfigurationError
from chancy.plugin.discovery import installed, made, settings_of
from chancy.plugin.runtime import Application, Panel
from chancy.plugins.pruner import Pruner
from chancy.plugins.recovery import Recovery
from chancy.testing.memory import MemoryBroker

DSN = "postgresql://nowhere/nothing"
MODULE = """\
from chancy import Plugin
IMPORTED = True

class Stamps(Plugin):
    def __init__(self, *, every_s: float = 5.0, colours: tuple[str, ...] = ()) -> None:
        self.every_s = every_s
        self.colours = colours

    @classmethod
    def get_identifier(cls) -> str:
        return "shop.stamps"

NOTHING = 3
"""

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Put a distribution with entry points where Python looks."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "stamps_plugin.py").write_text(MODULE)
    monkeypatch.delitem(sys.modules, "stamps_plugin", raising=False)

    def install(name: str = "shop-stamps", **points: str) -> None:
        folder = tmp_path / f"{name.replace('-', '_')}-1.2.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
        lines = "".join(f"{key.replace('_', '.')} = {value}\n" for key, value in points.items())
        (folder / "entry_points.txt").write_text(f"[chancy.plugins]\n{lines}")

    return install


def test_installed_plugins_are_listed_and_not_imported(install: Install) -> None:
    install(shop_stamps="stamps_plugin:Stamps")
    (found,) = [one for one in installed() if one.identifier == "shop.stamps"]
    assert (found.distribution, found.version) == ("shop-stamps", "1.2")
    chancy = Chancy(DSN)
    assert "shop.stamps" not in [one.get_identifier() for one in chancy.hooks.plugins]
    assert "stamps_plugin" not in sys.modules


def test_a_name_makes_an_installed_plugin(install: Install) -> None:
    install(shop_stamps="stamps_plugin:Stamps")
    chancy = Chancy(DSN, plugins=["shop.stamps", Pruner(keep_days=3)])
    identifiers = [one.get_identifier() for one in chancy.hooks.plugins]
    assert identifiers[-2:] == ["shop.stamps", "chancy.pruner"]
    assert len(identifiers) == len(Chancy(DSN).hooks.plugins) + 1


def test_a_name_makes_a_default_plugin() -> None:
    chancy = Chancy(DSN, plugins=["chancy.recovery"], no_default_plugins=True)
    assert [type(one) for one in chancy.hooks.plugins] == [Recovery]


def test_names_that_do_not_lead_to_a_plugin_are_refused(install: Install) -> None:
    install(shop_stamps="stamps_plugin:Stamps", shop_nothing="stamps_plugin:NOTHING",
            shop_lost="nowhere:Stamps", shop_other="stamps_plugin:Stamps")  # fmt: skip
    install("other-stamps", shop_twice="stamps_plugin:Stamps")
    install("third-stamps", shop_twice="stamps_plugin:NOTHING")
    for name, said in (
        ("shop.stamp", r"no plugin 'shop\.stamp'; did you mean 'shop\.stamps'\? .*chancy\.retry"),
        ("shop.nothing", r"shop-stamps 1\.2 .* is 3, not a subclass of Plugin"),
        ("shop.lost", r"cannot be imported: ModuleNotFoundError: No module named 'nowhere'"),
        ("shop.other", r"has the identifier 'shop\.stamps'"),
        ("shop.twice", "several distributions: other-stamps, third-stamps"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            Chancy(DSN, plugins=[name])
    with pytest.raises(ConfigurationError, match=r"pass a list, \['chancy\.retry'\]"):
        Chancy(DSN, plugins="chancy.retry")


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        ("chancy.recovery", {"batch": 0}, "batch=0"),  # would rescue nothing
        ("chancy.recovery", {"sweep_s": 0}, "sweep_s=0"),
        ("chancy.pruner", {"every_s": 0}, "every_s=0"),
        ("chancy.pruner", {"keep_days": 10**9}, "keep_days=1000000000"),
    ],
)
def test_settings_out_of_range_are_refused(name: str, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        make(name, settings)


def test_settings_are_the_parameters_of_the_constructor() -> None:
    assert [*settings_of(Recovery).model_fields] == ["sweep_s", "batch"]
    found = make("chancy.recovery", {"sweep_s": "1.5"})
    assert isinstance(found, Recovery)
    assert (found.sweep_s, found.batch) == (1.5, Recovery().batch)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"keep_day": 3},
            "no setting 'keep_day'; did you mean 'keep_days'? Its settings: keep_days",
        ),
        ({"keep_days": "long"}, "setting keep_days: Input should be a valid integer"),
        ({"keep_days": 0}, "keep_days=0 must be a whole number from 1 to 36,500 days"),
    ],
)
def test_a_wrong_setting_names_the_plugin_the_setting_and_the_reason(
    settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        make("chancy.pruner", settings, source="x.toml")
    assert str(caught.value).startswith("x.toml: the plugin 'chancy.pruner'")
    assert said in str(caught.value)
    assert "long" not in str(caught.value)


class Modelled(Plugin):
    class Settings(BaseModel):
        limit: int = Field(default=3, le=10)

    def __init__(self, *, limit: int = 3) -> None:
        self.limit = limit


def test_a_plugin_may_have_a_model_of_its_own() -> None:
    found = made(Modelled, {"limit": 4})
    assert isinstance(found, Modelled)
    assert found.limit == 4
    with pytest.raises(ConfigurationError, match=r"setting limit: .*less than or equal to 10"):
        made(Modelled, {"limit": 11})
    with pytest.raises(ConfigurationError, match="no setting 'limits'; did you mean 'limit'"):
        made(Modelled, {"limits": 1})


class Lazy(Plugin):
    def __init__(self, *, limits: Iterable[int] = ()) -> None:
        self.limits = tuple(limits)


def test_a_wrong_setting_that_the_constructor_iterates_is_a_configuration_error() -> None:
    found = made(Lazy, {"limits": [1, "2"]})
    assert isinstance(found, Lazy)
    assert found.limits == (1, 2)
    with pytest.raises(ConfigurationError, match=r"test_discovery\.Lazy'.*valid integer"):
        made(Lazy, {"limits": [1, "many"]})


class Demanding(Plugin):
    def requires(self) -> frozenset[Capability]:
        return frozenset({Capability.SQL, Capability.NOTICES})


def test_a_broker_that_lacks_something_is_named_with_the_plugin() -> None:
    Chancy(DSN, plugins=[Demanding()])
    with pytest.raises(
        ConfigurationError,
        match=r"test_discovery\.Demanding' requires a broker with SQL statements; MemoryBroker "
        "offers jobs on hold, jobs that expire, notices, unique jobs",
    ):
        Chancy(broker=MemoryBroker(), plugins=[Demanding()])


async def none(app: Application) -> list[dict[str, Any]]:
    return []


class Showing(Plugin):
    def __init__(self, identifier: str, *names: str) -> None:
        self.identifier = identifier
        self.names = names

    def get_identifier(self) -> str:  # type: ignore[override]
        return self.identifier

    def panels(self) -> list[Panel]:
        return [Panel(name=name, title=name, rows=none) for name in self.names]


def test_panels_are_collected_and_have_one_name_each() -> None:
    chancy = Chancy(DSN, plugins=[Showing("a", "x", "y"), Showing("b", "z")])
    assert [panel.name for panel in chancy.hooks.panels] == [
        *("dead-letters", "cron", "workflows"),
        *("x", "y", "z"),
    ]
    with pytest.raises(ConfigurationError, match="'a' and 'b' both have a panel 'x'"):
        Chancy(DSN, plugins=[Showing("a", "x"), Showing("b", "x")])
    with pytest.raises(ConfigurationError, match="cannot be the name of a panel"):
        Panel(name="A panel", title="t", rows=none)
