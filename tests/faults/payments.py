"""Jobs that complete themselves in the transaction of what they write, and pause in the middle of
it; and jobs of several steps."""

from __future__ import annotations

import time
from pathlib import Path

import psycopg

from chancy import current_job, job
from tests.faults import book as books

TABLE = "create table payments (number int, attempt int)"


def _pause(place: str, folder: str) -> None:
    """The first to come here waits for a file."""
    path = Path(folder)
    try:
        (path / place).touch(exist_ok=False)
    except FileExistsError:
        return
    while not (path / "go").exists():
        time.sleep(0.01)


def _note(folder: str, text: str) -> None:
    (Path(folder) / "raised").write_text(text)


@job(queue="load", max_attempts=1)
def pay(dsn: str, folder: str, number: int, pause: str) -> None:
    """``pause``: before or after it completes itself. What its transaction raises is written to a
    file, since nobody hears of the outcome of a zombie."""
    this = current_job()
    try:
        with psycopg.connect(dsn) as connection:
            # So that a test need not wait for the ten seconds which there are otherwise.
            connection.execute("set idle_in_transaction_session_timeout = '1s'")
            connection.commit()
            row = (number, this.attempt)
            connection.execute("insert into payments values (%s, %s)", row)
            if pause == "before":
                # The session is not idle here, or the server would end it for that.
                connection.execute("set local idle_in_transaction_session_timeout = 0")
                _pause(pause, folder)
            this.sync_complete_in(connection)
            if pause == "after":
                _pause(pause, folder)
    except Exception as error:
        _note(folder, type(error).__name__)
        raise


@job(queue="load", max_attempts=1)
def in_steps(book: str, folder: str, number: int, steps: int) -> list[int]:
    """Pauses between its steps, in the middle of them."""
    this = current_job()
    done: list[int] = []
    for step in range(steps):
        if step == steps // 2:
            _pause("between", folder)
        done.append(this.sync_step(f"step {step}", _one_step, book, number * 100 + step))
    return done


def _one_step(book: str, number: int) -> int:
    books.write(book, number, "begin")
    return number
