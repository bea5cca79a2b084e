"""The site has every page and every public name. Whether its links hold is for `make docs`."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from pathlib import Path

import chancy
from tests.support.sources import ROOT, files, shown

CONFIGURATION = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")


def test_the_navigation_has_each_page_once() -> None:
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in ROOT.glob("docs/**/*.md")}
    listed = Counter(re.findall(r": ([\w/.-]+\.md)$", CONFIGURATION, re.MULTILINE))
    assert {page for page, times in listed.items() if times > 1} == set()
    added = {page for page in listed if page.startswith("project/")}
    assert pages - set(listed) == set(), "put these into the nav of mkdocs.yml"
    assert set(listed) - added - pages == set(), "these are gone"


def test_the_site_documents_every_public_name_from_its_docstring() -> None:
    text = "".join(
        path.read_text(encoding="utf-8") for path in ROOT.glob("docs/reference/python/*.md")
    )
    documented = set(re.findall(r"^::: chancy\.(?:job\.definition\.)?(\w+)$", text, re.MULTILINE))
    errors = {name for name in chancy.__all__ if hasattr(chancy.errors, name)}
    assert "errors" in documented
    assert set(chancy.__all__) - documented - errors == set()


def test_the_site_loads_nothing_from_elsewhere() -> None:
    assert re.search(r"^  font: false$", CONFIGURATION, re.MULTILINE)
    found = re.findall(r"https?://\S+", CONFIGURATION)
    assert found == []
    drawn = [path for path in ROOT.glob("docs/**/*.md") if "```mermaid" in path.read_text()]
    assert drawn == [], "the theme would load mermaid from another host: draw an SVG"


def test_the_distribution_has_one_name() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["name"] == "chancy-queue"
    texts = {path: path.read_text(encoding="utf-8") for path in files(".md", ".py", ".toml")}
    wrong = [
        f"{shown(path)}: {found}"
        for path, text in texts.items()
        for found in re.findall(r"""(?:pip install.*|version\(["'])\bchancy\b(?!-).*""", text)
        if path != Path(__file__)
    ]
    assert wrong == [], "this is another project on package indexes"
