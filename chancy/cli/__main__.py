"""``python -m chancy.cli`` is ``chancy``."""

from __future__ import annotations

from chancy.cli.main import main

if __name__ == "__main__":
    main()
