"""Compressors of records."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Mapping
from typing import Any, Protocol, cast, runtime_checkable

from chancy.checks import check_number
from chancy.plugins.redis.streams.encoding.optional import builtin, imported

#: Maximum bytes of a decompressed event: a few stored bytes can expand to any number.
MAX_DECOMPRESSED = 64 * 1024 * 1024

_GZIP_BITS = 31


@runtime_checkable
class Compressor(Protocol):
    """Compresses bytes and decompresses them. Must be thread-safe."""

    @property
    def name(self) -> str:
        """The name, 1 to 32 of ``a-z 0-9 _ -``; stored with every event that it compressed."""
        ...

    def compress(self, data: bytes) -> bytes: ...

    def decompress(self, data: bytes) -> bytes:
        """Decompress; raise any exception for bytes that it did not compress."""
        ...


def _too_large(name: str) -> ValueError:
    return ValueError(f"{name}: more than {MAX_DECOMPRESSED:,} bytes when decompressed")


class Gzip:
    """Gzip, from the standard library.

    :param level: 1 (fastest) to 9 (smallest).
    """

    name = "gzip"

    def __init__(self, level: int = 6) -> None:
        check_number(level, "gzip: level", 1, 9)
        self.level = level

    def compress(self, data: bytes) -> bytes:
        work = zlib.compressobj(self.level, zlib.DEFLATED, _GZIP_BITS)
        return work.compress(data) + work.flush()

    def decompress(self, data: bytes) -> bytes:
        work = zlib.decompressobj(_GZIP_BITS)
        plain = work.decompress(data, MAX_DECOMPRESSED)
        if work.unconsumed_tail:
            raise _too_large(self.name)
        if not work.eof:
            raise ValueError("gzip: the end is missing")
        return plain


class Lz4:
    """LZ4 frames, from the library lz4: low compression, very fast."""

    name = "lz4"

    def __init__(self) -> None:
        self._frame = imported("lz4.frame", what="the compressor 'lz4'")

    def compress(self, data: bytes) -> bytes:
        return cast(bytes, self._frame.compress(data))

    def decompress(self, data: bytes) -> bytes:
        work = self._frame.LZ4FrameDecompressor()
        plain: bytes = work.decompress(data, max_length=MAX_DECOMPRESSED)
        if not work.eof:
            if len(plain) >= MAX_DECOMPRESSED:
                raise _too_large(self.name)
            raise ValueError("lz4: the end is missing")
        return plain


class Zstd:
    """Zstandard, from the library zstandard: about as small as gzip, several times as fast.

    :param level: 1 (fastest) to 22 (smallest).
    """

    name = "zstd"

    def __init__(self, level: int = 3) -> None:
        self._library = imported("zstandard", what="the compressor 'zstd'")
        check_number(level, "zstd: level", 1, 22)
        self.level = level
        # The library's objects are not thread-safe, and cost more than a small record to create.
        self._own = threading.local()

    def compress(self, data: bytes) -> bytes:
        work: Any = getattr(self._own, "compressor", None)
        if work is None:
            work = self._own.compressor = self._library.ZstdCompressor(level=self.level)
        return cast(bytes, work.compress(data))

    def decompress(self, data: bytes) -> bytes:
        # The library allocates the size that a frame declares, whatever the limit.
        promised = self._library.get_frame_parameters(data).content_size
        if MAX_DECOMPRESSED < promised < self._library.CONTENTSIZE_UNKNOWN:
            raise _too_large(self.name)
        work: Any = getattr(self._own, "decompressor", None)
        if work is None:
            work = self._own.decompressor = self._library.ZstdDecompressor()
        return cast(bytes, work.decompress(data, max_output_size=MAX_DECOMPRESSED))


_COMPRESSORS: Mapping[str, Callable[[], Compressor]] = {"gzip": Gzip, "lz4": Lz4, "zstd": Zstd}


def find_compressor(compressor: str | Compressor) -> Compressor:
    """Return the compressor of a name, or a custom compressor.

    :raises ConfigurationError: the name is unknown, its library is missing, or the object is not a
        compressor.
    """
    if isinstance(compressor, Compressor):
        return compressor
    methods = "compress(data) and decompress(data)"
    others = f"an object with a name and the methods {methods}"
    return builtin(compressor, _COMPRESSORS, what="compressor", others=others)
