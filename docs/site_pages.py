"""Hooks of mkdocs: the pages read the same on a code host and on the site.

Pages from outside of ``docs`` are added to the site, and links to them are rewritten. The words
after the language of a block are removed: only the tests of the pages read them. Guides with
``await`` outside of a function begin with where to run it.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]

#: Pages outside of ``docs``, by their path in the repository.
OUTSIDE = {
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "README.md": "index.md",
    "benchmarks/README.md": "project/benchmarks.md",
} | {
    f"examples/{name}/README.md": f"project/{name}.md"
    for name in (
        "django_shop",
        "fastapi_shop",
        "flask_shop",
        "plugins",
        "quickstart",
        "third_party_plugin",
    )
}
_SOURCES = {on_site: path for path, on_site in OUTSIDE.items() if on_site != "index.md"}

_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#:]*)(#[^)\s]*)?\)")
_FENCE = re.compile(r"^(`{3,}\w+) .*$", re.MULTILINE)

#: A line of an example that awaits outside of a function.
_AWAITS = re.compile(
    r"^(?:\w[\w, \[\]:]* = |assert |print\()?\(*(?:await|async with|async for) ", re.MULTILINE
)
_PROMPT = (
    "Save a block whose first line is a comment with a file name as this file. Run the other "
    "Python blocks in order in `python -m asyncio`, in the same directory."
)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from outside of ``docs``."""
    for on_site, path in _SOURCES.items():
        files.append(File.generated(config, on_site, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links where their pages are on the site; a link to any other file becomes its text."""
    here = page.file.src_uri
    source = _SOURCES.get(here, f"docs/{here}")

    def moved(link: re.Match[str]) -> str:
        image, text, path, anchor = link[1], link[2], link[3], link[4] or ""
        if not path:
            return link[0]
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        target = OUTSIDE.get(target, target.removeprefix("docs/"))
        if files.get_file_from_path(target) is None:
            # A dead link within docs is left as it is: mkdocs reports it.
            return link[0] if source == f"docs/{here}" and not path.startswith("../../") else text
        return f"{image}[{text}]({posixpath.relpath(target, posixpath.dirname(here))}{anchor})"

    markdown = _FENCE.sub(r"\1", _LINK.sub(moved, markdown))
    if here.startswith("guides/") and "-m asyncio`" not in markdown and _AWAITS.search(markdown):
        title, _, rest = markdown.partition("\n")
        markdown = f"{title}\n\n*{_PROMPT}*\n{rest}"
    return markdown
