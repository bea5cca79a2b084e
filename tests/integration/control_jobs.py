"""Functions of jobs that put themselves off, cancel themselves, or say when to try again."""

from __future__ import annotations

from pathlib import Path

from chancy import Cancel, Retry, Snooze, job


def _runs(path: str) -> int:
    """How often it has run, this time included."""
    file = Path(path)
    count = len(file.read_text()) + 1 if file.exists() else 1
    file.write_text("x" * count)
    return count


@job(max_attempts=1)
def poll(path: str, times: int) -> int | Snooze:
    """Puts itself off so many times."""
    count = _runs(path)
    return count if count > times else Snooze(0.05)


@job
async def give_up_async(path: str) -> Cancel | None:
    _runs(path)
    return Cancel("nobody wants it any more")


@job(max_attempts=3)
async def try_again_async(path: str) -> None:
    raise Retry(0.05, f"busy {_runs(path)}")
