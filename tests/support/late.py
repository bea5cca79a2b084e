"""asyncio for modules of jobs, imported when it is first used.

An executor process that runs plain functions does not import it, which is half of the CPU time of
its start: so should not the modules of its jobs.
"""

from __future__ import annotations

from typing import Any


class _Late:
    def __getattr__(self, name: str) -> Any:
        import asyncio

        return getattr(asyncio, name)


asyncio = _Late()
