"""How the commands of cron answer."""

from __future__ import annotations

from typing import NoReturn

from chancy.plugin.commands import refuse
from chancy.text import shown


def unknown(name: str) -> NoReturn:
    """End because there is no such entry."""
    refuse(f"there is no cron entry {shown(name)}")
