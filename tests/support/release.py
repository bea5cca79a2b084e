"""Checks what a release would publish: ``make release-check``, or with its tag
``python -m tests.support.release --tag v1.2.0``.

Builds the archives, compares their contents, metadata and versions with the repository, installs
the wheel in a clean virtual environment, and runs the quickstart, the demo and the dashboard there
on a private Postgres.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import urllib.error
import urllib.request
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path
from shutil import copytree

import click
from packaging.metadata import Metadata

from chancy.embedded import PostgresServer
from chancy.plugins.encryption import new_key
from tests.support.ports import free_port
from tests.support.sources import ROOT

#: What only the source archive has.
ALSO = ("benchmarks", "deploy", "docs", "examples", "tests")
#: Seconds for one command.
PATIENCE_S = 600.0
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
#: Extras without which a plugin of the wheel cannot be used.
EXTRAS = "dashboard,encryption,opentelemetry,prometheus,redis"


class Wrong(click.ClickException):
    """Something that must not be published."""


def run(*command: object, cwd: Path, env: dict[str, str] | None = None) -> str:
    """Run a command to its end; returns what it printed."""
    shown = " ".join(str(word) for word in command)
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    if done.returncode:
        raise Wrong(f"{shown} exited with {done.returncode}:\n{done.stdout}")
    return done.stdout


def tracked(*folders: str) -> set[str]:
    """The files of folders that are in version control, without links."""
    names = run("git", "ls-files", "-z", "--", *folders, cwd=ROOT).split("\0")
    return {name for name in names if name and not (ROOT / name).is_symlink()}


def product() -> set[str]:
    """The paths of the installed package."""
    linked = {f"chancy/{name}" for name in tracked("plugins", "migrations")}
    return tracked("chancy") | linked


def compare(found: set[str], expected: set[str], archive: str) -> None:
    """Raise unless an archive has the expected files and no others."""
    missing, more = sorted(expected - found), sorted(found - expected)
    if missing or more:
        raise Wrong(f"{archive} lacks {missing[:10]}, and should not have {more[:10]}")


def check_contents(wheel: Path, sdist: Path) -> Metadata:
    """Compare the files of both archives with the repository; returns the wheel's metadata."""
    expected = product()
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (text,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        metadata = Metadata.from_email(archive.read(text))  # raises for what an index refuses
    packaged = {name for name in names if ".dist-info/" not in name}
    compare(packaged, expected, wheel.name)
    if not any(name.endswith("licenses/LICENSE") for name in names):
        raise Wrong(f"{wheel.name} lacks the licence")
    with tarfile.open(sdist) as archive:
        members = [m.name.partition("/")[2] for m in archive.getmembers() if m.isfile()]
    sources = {name for name in members if name.partition("/")[0] in ("chancy", *ALSO)}
    compare(sources, expected | tracked(*ALSO), sdist.name)
    click.echo(f"contents: {len(packaged)} files in the wheel, {len(members)} in the sdist")
    return metadata


def check_versions(metadata: Metadata, tag: str | None) -> None:
    """Raise unless the project, the metadata, the changelog and the tag have one version."""
    version = PROJECT["version"]
    if str(metadata.version) != version or metadata.name != PROJECT["name"]:
        raise Wrong(f"the wheel is {metadata.name} {metadata.version}")
    released = re.findall(r"^## \[([^\]]+)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    if tag is not None and tag.removeprefix("v") != version:
        raise Wrong(f"the tag is {tag}, and the version in pyproject.toml {version}")
    if tag is not None and version not in released:
        raise Wrong(f"CHANGELOG.md has no section [{version}], but {released}")
    if released and released[0] != version:
        raise Wrong(f"CHANGELOG.md begins with {released[0]}, and the version is {version}")
    click.echo(f"versions: {version}")


def check_fragments(tag: str | None) -> None:
    """Render the changelog fragments; raise for one without a type, and with a tag for any."""
    draft = ("towncrier", "build", "--draft", "--version", PROJECT["version"])
    run(sys.executable, "-m", *draft, cwd=ROOT)
    left = sorted(path.name for path in (ROOT / "changes").glob("*.*.md"))
    if tag is not None and left:
        raise Wrong(f"{left} are not in CHANGELOG.md: run `make changelog`")
    click.echo(f"changes: {len(left)} fragments render")


def check_description(archives: Sequence[Path], cwd: Path) -> None:
    """Let twine check the archives as an index would, with the description rendered."""
    click.echo(run(sys.executable, "-m", "twine", "check", "--strict", *archives, cwd=cwd).strip())


def check_installed(wheel: Path, cwd: Path) -> None:
    """Install the wheel alone, then with extras, and use it on a private server."""
    venv.create(cwd / "venv", with_pip=True)
    programs = cwd / "venv" / "bin"
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("CHANCY_", "PG", "PYTHON"))}
    env = kept | {"PATH": f"{programs}:{kept['PATH']}", "PYTHONUNBUFFERED": "1"}
    pip = (programs / "python", "-m", "pip", "--quiet", "--disable-pip-version-check")
    pinned = ("-c", ROOT / "constraints.txt")
    run(*pip, "install", *pinned, wheel, cwd=cwd, env=env)
    run(*pip, "check", cwd=cwd, env=env)
    if PROJECT["version"] not in (shown := run("chancy", "--version", cwd=cwd, env=env)):
        raise Wrong(f"chancy --version printed {shown}")
    shop = Path(copytree(ROOT / "examples" / "quickstart", cwd / "quickstart"))
    with PostgresServer(settings={"fsync": "off"}) as server:
        env["CHANCY_DSN"] = server.dsn()
        _use(shop, env)
        click.echo("installed: the quickstart runs without any extra")
        run("chancy", "demo", "--dsn", server.dsn(), "--modules", "40", cwd=cwd, env=env)
        click.echo("installed: the demo runs, and its totals are right")
        run(*pip, "install", *pinned, f"{wheel}[{EXTRAS}]", cwd=cwd, env=env)
        # One has no tables, and rules that it requires.
        named = PROJECT["entry-points"]["chancy.plugins"].keys() - {"chancy.reprioritize"}
        env["CHANCY_ENCRYPTION_KEYS"] = f"k1:{new_key()}"
        env["CHANCY_PLUGINS"] = ",".join(sorted(named))
        upgraded = run("chancy", "migrate", "upgrade", cwd=cwd, env=env)
        _look(cwd, env)
    click.echo(f"installed: {upgraded.count(' was at ')} plugins migrate; the dashboard serves")


def _use(shop: Path, env: dict[str, str]) -> None:
    """Run the quickstart: a script that pushes, and a worker."""
    run("chancy", "migrate", "upgrade", cwd=shop, env=env)
    with subprocess.Popen(
        ["python", "push.py"], cwd=shop, env=env, stdout=subprocess.PIPE, text=True
    ) as script:
        try:
            assert script.stdout is not None
            pushed = script.stdout.readline()
            run("chancy", "worker", "--app", "jobs:chancy", "--burst", cwd=shop, env=env)
            printed = script.communicate(timeout=60)[0]
        finally:
            script.kill()
    if not pushed.startswith("pushed") or printed.splitlines() != ["5", "Hello, Ann!"]:
        raise Wrong(f"push.py printed {pushed}{printed}")


def _look(cwd: Path, env: dict[str, str]) -> None:
    """Load a page of the dashboard and a file of it."""
    port = free_port()
    command = ["chancy", "dashboard", "--port", str(port)]
    with subprocess.Popen(command, cwd=cwd, env=env, stdout=subprocess.PIPE) as served:
        try:
            assert served.stdout is not None
            served.stdout.readline()  # the address
            for path in ("queues", "static/dashboard.css"):
                _load(f"http://127.0.0.1:{port}/{path}")
        finally:
            served.terminate()


def _load(url: str) -> None:
    until = time.monotonic() + 30
    while True:
        try:
            with urllib.request.urlopen(url, timeout=30) as response:
                response.read()
            return
        except urllib.error.HTTPError as error:
            raise Wrong(f"{url} responds with {error.code}") from None
        except urllib.error.URLError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


@click.command()
@click.option("--tag", help="The tag of the release, such as v1.2.0.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="A directory for the archives, if they pass.",
)
def main(tag: str | None, out: Path | None) -> None:
    """Check what a release would publish."""
    with tempfile.TemporaryDirectory() as temporary:
        cwd = Path(temporary)
        built = cwd / "dist"
        run(sys.executable, "-m", "build", "--no-isolation", "--outdir", built, ROOT, cwd=cwd)
        (wheel,), (sdist,) = built.glob("*.whl"), built.glob("*.tar.gz")
        check_versions(check_contents(wheel, sdist), tag)
        check_fragments(tag)
        check_description([wheel, sdist], cwd)
        check_installed(wheel, cwd)
        if out is not None:
            copytree(built, out, dirs_exist_ok=True)


if __name__ == "__main__":
    main()
