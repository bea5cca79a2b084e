"""Records from the lines of a file, one JSON object each."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import BinaryIO, Generic, TypeVar

from chancy.errors import InvalidArguments

R = TypeVar("R")

#: Maximum bytes of a line: a file without line ends must not fill the memory.
MAX_LINE = 16 * 1024 * 1024
#: Records whose line numbers are remembered; more than are in flight at any time.
_REMEMBERED = 10_000


class Lines(Generic[R]):
    """Iterates over the records of a file and tracks their line numbers.

    :param name: the name of the file, for errors.
    :param make: parses a line into a record; raises `InvalidArguments`.
    :param first: the first line to use, from 1.
    :ivar read: bytes read so far.
    """

    def __init__(
        self, file: BinaryIO, name: str, make: Callable[[bytes], R], *, first: int = 1
    ) -> None:
        self._file = file
        self._name = name
        self._make = make
        self._first = first
        self._numbers: deque[int] = deque(maxlen=_REMEMBERED)
        self._made = 0
        self.read = 0

    def __iter__(self) -> Iterator[R]:
        """:raises InvalidArguments: a line is not a valid record; the message names the line."""
        number = 0
        while line := self._file.readline(MAX_LINE + 1):
            number += 1
            self.read += len(line)
            if len(line) > MAX_LINE:
                raise InvalidArguments(
                    f"{self._name}:{number}: the line has more than {MAX_LINE:,} bytes: write one "
                    "JSON object per line"
                )
            if number < self._first or not line.strip():
                continue
            try:
                record = self._make(line)
            except InvalidArguments as error:
                raise InvalidArguments(f"{self._name}:{number}: {error}") from None
            self._made += 1
            self._numbers.append(number)
            yield record

    def line_of(self, record: int) -> int | None:
        """Return the line of a record by its number from 1; None if it is unread or forgotten."""
        back = self._made - record
        if record > self._made or back >= len(self._numbers):
            return None
        return self._numbers[len(self._numbers) - 1 - back]
